"""Attention of the drafter to the target's keys and values, dense, many anchors of a sequence at once."""

from __future__ import annotations

import torch
from torch.nn import functional

from drafter_training.target import TargetPass


class DenseContext:
    """``CrossAttend`` for B sequences with A anchors each, R = B * A.

    Args:
        target: keys and values of the sequences.
        at: int64 [B, A]; an anchor's slots see the positions before it.
        block: slots of an anchor.
    """

    def __init__(self, target: TargetPass, at: torch.Tensor, block: int) -> None:
        self._target = target
        self._block = block
        self._shape = at.shape
        width = target.hidden.shape[1]
        seen = torch.arange(width, device=at.device) < at.unsqueeze(-1)
        self._seen = seen.repeat_interleave(block, dim=1).unsqueeze(1)

    def __call__(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Return [R * K, heads, head_dim] for queries alike."""
        sequences, anchors = self._shape
        heads, width = queries.shape[1:]
        rows = queries.view(sequences, anchors * self._block, heads, width).transpose(1, 2)
        key, value = (
            part.repeat_interleave(heads // part.shape[2], dim=2).transpose(1, 2).to(queries.dtype)
            for part in (self._target.keys[layer], self._target.values[layer])
        )
        out = functional.scaled_dot_product_attention(rows, key, value, attn_mask=self._seen)
        return out.transpose(1, 2).reshape(-1, heads, width)


def anchored(features: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Return [B * A, features] of [B, T, features]: those of the position before each anchor."""
    index = (at - 1).unsqueeze(-1).expand(-1, -1, features.shape[-1])
    return features.gather(1, index).flatten(0, 1)
