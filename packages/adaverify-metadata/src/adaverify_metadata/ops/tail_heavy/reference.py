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


def used_rows(row_lens: torch.Tensor) -> torch.Tensor:
    """Return int64 [1]: rows up to the last whose true length, by its last column, is not 0."""
    last = row_lens if row_lens.dim() == 1 else row_lens[:, -1]
    number = torch.arange(1, len(last) + 1, device=row_lens.device)
    return torch.where(last > 0, number, 0).amax().view(1)


def schedule_tail_heavy(
    lens: torch.Tensor,
    slots: int,
    split: int = 256,
    atoms: int = 1,
    *,
    row_lens: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the schedule int32 [slots + 1, 2] of (unit, split) pairs, remainder last.

    Slot i owns the half-open range from pair i to pair i + 1; unit ``b * atoms + a`` is part a of row b. The
    kernel that walks it stops only when it *meets* pair i + 1, so the schedule belongs to these lengths:
    build it every step, from ``max(length, 1)``.

    Padding rows come last, and each would be one split of work, all of it on the last slots, with queries to
    fetch for every one of them: 32 behind 256 real rows made the kernel 12 to 15 % slower at contexts 2048
    and 8192. ``row_lens`` leaves them out: the last pair is (used rows x atoms, 0), where the walk stops.

    Args:
        lens: int32 [B] or [B, N] (the last column counts).
        slots: processors, or pairs of them.
        split: KV positions in one split.
        atoms: units of one row.
        row_lens: true lengths, like ``lens``; the rows behind the last that is not empty are left out. None
            schedules all rows.
    """
    splits = splits_of(lens, split)
    rows = len(splits)
    used = torch.full((1,), rows, device=lens.device)
    if row_lens is not None and rows:
        used = used_rows(row_lens)
        splits = torch.where(torch.arange(rows, device=lens.device) < used, splits, 0)
    until = (splits * atoms).cumsum(0)
    start = tail_heavy_starts(splits.sum() * atoms, slots)
    schedule = torch.zeros(slots + 1, 2, dtype=torch.int32, device=lens.device)
    if rows:
        # All rows empty leaves no row after the start; the clamp keeps the kernel's reads in bounds.
        row = torch.searchsorted(until, start, right=True)
        row = torch.minimum(row, used - 1).clamp(min=0)
        inside = start - (until - splits * atoms)[row]
        size = splits[row].clamp(min=1)
        schedule[:, 0] = row * atoms + inside // size
        schedule[:, 1] = inside % size
        # Copied and filled: an assigned number comes from the host, which a capture refuses.
        schedule[slots, :1].copy_(used * atoms)
        schedule[slots, 1].fill_(0)
    return schedule
