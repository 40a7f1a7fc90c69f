"""One folder an operation: readable torch reference, Triton kernel, launch."""
