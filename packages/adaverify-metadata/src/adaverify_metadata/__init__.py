"""Decode-row builders for ragged batches: readable torch reference and Triton kernels."""
