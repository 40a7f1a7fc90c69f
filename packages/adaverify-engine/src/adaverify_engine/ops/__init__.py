"""One folder an operation of the decode step: readable reference, Triton kernel, launch."""
