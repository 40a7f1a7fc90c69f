"""Reference of the shaping of queries, in plain torch."""

from __future__ import annotations

import torch

from adaverify_engine.sparse_moe.ops.rotation import quantised, rotated


def shape_queries_reference(
    wide: torch.Tensor,
    gates: torch.Tensor,
    cosine: torch.Tensor,
    sine: torch.Tensor,
    *,
    heads: int,
    index_dim: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate the attention queries in place; return index queries and weights.

    Arguments as ``shape_queries`` documents them, cosine and sine by token: [T, rope / 2].
    """
    index_heads = gates.shape[1]
    width = wide.shape[1] - index_heads * index_dim
    cosine, sine = cosine[:, None], sine[:, None]
    attention = wide[:, :width].view(len(wide), heads, width // heads)
    attention.copy_(rotated(attention, cosine, sine))
    index = wide[:, width:].view(len(wide), index_heads, index_dim)
    codes, scale = quantised(rotated(index, cosine, sine))
    return codes, gates.float() * scale * (index_heads * index_dim) ** -0.5
