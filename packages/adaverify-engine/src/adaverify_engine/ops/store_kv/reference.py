"""Reference of the store, in plain torch."""

from __future__ import annotations

import torch


def store_kv_reference(
    key: torch.Tensor, value: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor
) -> None:
    """Store key and value [T, kv_heads, head_dim] at ``slots`` int64 [T] of one layer's pool."""
    keys.index_copy_(0, slots, key)
    values.index_copy_(0, slots, value)
