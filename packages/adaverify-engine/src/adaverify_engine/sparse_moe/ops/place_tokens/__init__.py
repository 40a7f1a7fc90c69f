"""Where each query token stands: its position, what it may see, and the cache entry it completes."""
