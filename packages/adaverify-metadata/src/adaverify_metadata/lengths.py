"""Row lengths under KV compression and context parallelism, applied to each row after expansion."""

from __future__ import annotations

import torch

from adaverify_contracts import Limits


def compress_lens(lens: torch.Tensor, ratio: int) -> torch.Tensor:
    """Return how many compressed KV entries each row sees.

    Every ``ratio`` tokens make one entry once they are complete, so a *row's* length is divided, rounding
    down. Dividing the request's length first would give all its rows the last row's count.

    Args:
        lens: integer tensor of any shape, row lengths in tokens; negative counts as 0.
        ratio: tokens in one entry, at least 1.
    """
    return torch.div(lens.clamp(min=0), ratio, rounding_mode="floor")


def localize_lens(lens: torch.Tensor, size: int, rank: int, interleave: int = 1) -> torch.Tensor:
    """Return how many of each row's first ``lens`` KV positions live on one context-parallel rank.

    Position p lives on rank ``(p // interleave) % size``. A full turn of ``size * interleave`` positions
    gives each rank ``interleave`` of them; the last, partial turn fills the ranks in order.

    Args:
        lens: integer tensor of any shape, row lengths; negative counts as 0.
        size: ranks of the group.
        rank: this rank, 0 .. size - 1.
        interleave: consecutive positions on one rank.
    """
    lens = lens.clamp(min=0)
    turn = size * interleave
    whole = torch.div(lens, turn, rounding_mode="floor") * interleave
    return whole + (lens % turn - rank * interleave).clamp(0, interleave)


def local_lens(lens: torch.Tensor, limits: Limits) -> torch.Tensor:
    """Return ``lens`` compressed, then localised, as ``limits`` say; clamped at 0."""
    compressed = compress_lens(lens, limits.compress_ratio)
    return localize_lens(
        compressed,
        limits.context_parallel_size,
        limits.context_parallel_rank,
        limits.context_parallel_interleave,
    )
