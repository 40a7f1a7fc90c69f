"""Decode strategies that run on any torch device; the embedded default."""
