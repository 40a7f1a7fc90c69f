"""Attention of each query token over the cache entries that the indexer selected, and over itself."""
