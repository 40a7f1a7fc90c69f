"""The tail-heavy schedule over greedy pairs of rows."""
