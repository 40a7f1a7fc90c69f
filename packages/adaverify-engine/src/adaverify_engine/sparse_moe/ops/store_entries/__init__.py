"""From a layer's first product to the normed query base and the cache entries that tokens complete."""
