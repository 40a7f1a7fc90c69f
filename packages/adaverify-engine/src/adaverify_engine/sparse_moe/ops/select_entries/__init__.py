"""The best-scored cache entries of each slot."""
