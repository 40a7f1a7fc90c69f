"""Flattened decode rows: compiled for this hardware, never executed on it, taken only when named."""
