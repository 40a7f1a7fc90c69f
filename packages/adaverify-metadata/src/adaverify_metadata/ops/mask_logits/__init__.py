"""Minus infinity in every column that a slot may not see."""
