"""Adaptive verification for speculative decoding: the command line, with everything it needs to run."""
