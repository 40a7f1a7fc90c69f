"""Two query tokens of one request a row."""
