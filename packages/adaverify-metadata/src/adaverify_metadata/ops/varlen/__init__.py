"""One row a query token, grouped by request indices."""
