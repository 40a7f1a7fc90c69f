"""Reference of the gather: slot s takes the values of its token, an empty slot those of token 0."""

from __future__ import annotations

import torch


def gather_slots_reference(
    query: torch.Tensor, weights: torch.Tensor, row_token: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return query [M, N, H, D] and weights [M x N, H] by slot.

    Args:
        query: [T, H, D], any dtype of one byte, T >= 1.
        weights: float32 [T, H].
        row_token: int32 [M, N]; -1 in empty slots, whose results nobody reads.
    """
    token = row_token.clamp(min=0).long()
    by_slot = query.view(torch.uint8)[token].view(query.dtype)
    return by_slot, weights[token].flatten(0, 1)
