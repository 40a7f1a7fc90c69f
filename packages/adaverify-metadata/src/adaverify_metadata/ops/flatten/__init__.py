"""One row a query token, lengths from the device."""
