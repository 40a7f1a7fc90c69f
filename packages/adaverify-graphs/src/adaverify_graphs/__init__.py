"""Tier ladder, static buffers, capture and replay of ragged decode graphs."""
