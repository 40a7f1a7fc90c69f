"""One layer of the drafter: attention inside the block, attention to the target's cache, feed-forward."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from adaverify_smollm2.drafter.config import DrafterConfig
from adaverify_smollm2.rope import rotate

CrossAttend = Callable[[int, torch.Tensor], torch.Tensor]
"""``attend(target_layer, queries [R * K, heads, head_dim])`` over a request's cached positions, alike back.

Queries carry their positions already; every slot of a request sees all of its cached positions.
"""


class Norm(nn.Module):
    """Root-mean-square norm with a gain, in the input's dtype."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows`` [..., width] normalised."""
        return functional.rms_norm(rows, self.weight.shape, self.weight.to(rows.dtype), self.eps)


class BlockLayer(nn.Module):
    """Pre-norm: block attention, cross attention, gated feed-forward.

    The block attention is dense and looks both ways: all slots are predicted in one pass, and the slots see
    nothing but the prefix, so there is no future to hide.
    """

    def __init__(self, config: DrafterConfig, target_layer: int) -> None:
        super().__init__()
        width, inner = config.hidden, config.heads * config.head_dim
        self.heads, self.head_dim = config.heads, config.head_dim
        self.target_layer = target_layer
        self.block_norm = Norm(width, config.norm_eps)
        self.block_mixed = nn.Linear(width, 3 * inner, bias=False)
        self.block_out = nn.Linear(inner, width, bias=False)
        self.cross_norm = Norm(width, config.norm_eps)
        self.cross_query = nn.Linear(width, inner, bias=False)
        self.cross_out = nn.Linear(inner, width, bias=False)
        self.feed_forward_norm = Norm(width, config.norm_eps)
        self.gate_up = nn.Linear(width, 2 * config.intermediate, bias=False)
        self.down = nn.Linear(config.intermediate, width, bias=False)

    def forward(self, hidden: torch.Tensor, turns: torch.Tensor, attend: CrossAttend) -> torch.Tensor:
        """Return [R, K, hidden] for ``hidden`` alike and rotary ``turns`` [R, K, 1, head_dim / 2]."""
        hidden = hidden + self._block(self.block_norm(hidden), turns)
        hidden = hidden + self._cross(self.cross_norm(hidden), turns, attend)
        gate, up = self.gate_up(self.feed_forward_norm(hidden)).chunk(2, dim=-1)
        return hidden + self.down(functional.silu(gate) * up)

    def _block(self, rows: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        mixed = self.block_mixed(rows).view(*rows.shape[:2], 3 * self.heads, self.head_dim)
        turned = rotate(mixed[:, :, : 2 * self.heads].contiguous(), turns)
        query, key = (part.transpose(1, 2) for part in turned.chunk(2, dim=2))
        value = mixed[:, :, 2 * self.heads :].transpose(1, 2)
        out = functional.scaled_dot_product_attention(query, key, value)
        return self.block_out(out.transpose(1, 2).flatten(2))

    def _cross(self, rows: torch.Tensor, turns: torch.Tensor, attend: CrossAttend) -> torch.Tensor:
        query = self.cross_query(rows).view(*rows.shape[:2], self.heads, self.head_dim)
        attended = attend(self.target_layer, rotate(query, turns).flatten(0, 1))
        return self.cross_out(attended.reshape(*rows.shape[:2], self.heads * self.head_dim))
