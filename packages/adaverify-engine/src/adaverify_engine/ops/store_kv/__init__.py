"""Keys and values of a step's tokens into the paged cache."""
