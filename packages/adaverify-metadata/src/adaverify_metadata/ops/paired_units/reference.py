"""Reference of the paired-units schedule: neighbouring rows of a run pair up, then the tail-heavy rule."""

from __future__ import annotations

import torch

from adaverify_metadata.ops.head_heavy.reference import require_rows, run_starts
from adaverify_metadata.ops.tail_heavy.reference import splits_of, tail_heavy_starts


def pair_starts(request_indices: torch.Tensor) -> torch.Tensor:
    """Return bool [M]: rows that open a unit; a row pairs with the next if both have one index."""
    rows = torch.arange(len(request_indices), device=request_indices.device)
    return (rows - run_starts(request_indices)) % 2 == 0


def schedule_paired_units(
    lens: torch.Tensor, slots: int, request_indices: torch.Tensor, *, split: int = 256
) -> torch.Tensor:
    """Return the schedule int32 [slots + 1, 2] of (first row of a unit, split) pairs, remainder last.

    A unit is two neighbouring rows of one request, or one row alone; its length is its last row's.

    Args:
        lens: int32 [M] or [M, 1].
        slots: processors.
        request_indices: int32 [M].
        split: KV positions in one split.

    Raises:
        LayoutError: indices and lengths disagree.
    """
    require_rows(lens, request_indices)
    rows = len(request_indices)
    opens = pair_starts(request_indices)
    closes = torch.ones_like(opens)
    closes[:-1] = opens[1:]
    splits = torch.where(closes, splits_of(lens, split), 0)
    until = splits.cumsum(0)
    start = tail_heavy_starts(splits.sum(), slots)
    # The closing row carries the unit's splits; its unit opens there or one row before.
    row = torch.searchsorted(until, start, right=True)
    number = torch.arange(rows + 1, device=lens.device)
    first = torch.cat([torch.where(opens, number[:rows], number[:rows] - 1), number[rows:]])
    before = torch.cat([until - splits, splits.sum()[None]])
    return torch.stack([first[row], start - before[row]], dim=1).int()
