"""Reference of the mask: columns at or past a slot's length become minus infinity."""

from __future__ import annotations

import torch


def mask_logits_reference(logits: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
    """Write -inf where ``column >= lens[slot]``, in place, and return the logits.

    Args:
        logits: float32 or bfloat16 [S, C], row stride free.
        lens: int32 [S] or [M, N] with M x N = S; 0 masks the whole row.
    """
    columns = torch.arange(logits.shape[1], device=logits.device)
    return logits.masked_fill_(columns >= lens.reshape(-1, 1), float("-inf"))
