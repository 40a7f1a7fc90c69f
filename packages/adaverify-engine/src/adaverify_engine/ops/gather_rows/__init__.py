"""From request slots to the rows of a step: one gather of everything that belongs to a request."""
