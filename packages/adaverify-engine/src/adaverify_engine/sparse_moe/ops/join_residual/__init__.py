"""What a block adds to the residual, routed rows included, and the norm of the sum."""
