"""Flattened decode rows for consumer Blackwell (compute capability 12.0): compiled, never executed, taken only when named."""
