"""A sparse-attention mixture-of-experts decoder with random weights: real kernels, meaningless text."""

from adaverify_engine.sparse_moe.model import SparseMoe
from adaverify_engine.sparse_moe.sizes import SparseMoeSizes

__all__ = ["SparseMoe", "SparseMoeSizes"]
