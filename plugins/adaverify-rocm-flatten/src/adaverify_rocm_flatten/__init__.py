"""Flattened decode rows for CDNA 3 and 4 (gfx942, gfx950): compiled, never executed, taken only when named."""
