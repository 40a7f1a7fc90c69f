"""Reference of the tail-heavy schedule: the last slots take one split more."""

from __future__ import annotations

import torch


def tail_heavy_starts(total: torch.Tensor, slots: int) -> torch.Tensor:
    """Return int64 [slots + 1]: where each slot's share of ``total`` splits starts, the total at the end.

    The *last* ``total % slots`` slots get one more, so that idle slots own an empty range at the front.
    """
    slot = torch.arange(slots + 1, device=total.device)
    share, more = total // slots, total % slots
    return slot * share + (slot - (slots - more)).clamp(min=0)


def splits_of(lens: torch.Tensor, split: int) -> torch.Tensor:
    """Return int64 [B]: splits of each row, by its last column; lengths below 0 count as 0."""
    last = lens if lens.dim() == 1 else lens[:, -1]
    return -torch.div(-last.long().clamp(min=0), split, rounding_mode="floor")


def schedule_tail_heavy(lens: torch.Tensor, slots: int, split: int = 256, atoms: int = 1) -> torch.Tensor:
    """Return the schedule int32 [slots + 1, 2] of (unit, split) pairs, remainder last.

    Slot i owns the half-open range from pair i to pair i + 1; unit ``b * atoms + a`` is part a of row b. The
    kernel that walks it stops only when it *meets* pair i + 1, so the schedule belongs to these lengths:
    build it every step, from ``max(length, 1)``.

    Args:
        lens: int32 [B] or [B, N] (the last column counts).
        slots: processors, or pairs of them.
        split: KV positions in one split.
        atoms: units of one row.
    """
    splits = splits_of(lens, split)
    rows = len(splits)
    until = (splits * atoms).cumsum(0)
    start = tail_heavy_starts(splits.sum() * atoms, slots)
    schedule = torch.zeros(slots + 1, 2, dtype=torch.int32, device=lens.device)
    if rows:
        # All rows empty leaves no row after the start; the clamp keeps the kernel's reads in bounds.
        row = torch.searchsorted(until, start, right=True).clamp(max=rows - 1)
        inside = start - (until - splits * atoms)[row]
        size = splits[row].clamp(min=1)
        schedule[:, 0] = row * atoms + inside // size
        schedule[:, 1] = inside % size
        # Filled, not assigned: an assigned number is copied from the host, which a capture refuses.
        schedule[slots, 0].fill_(rows * atoms)
        schedule[slots, 1].fill_(0)
    return schedule
