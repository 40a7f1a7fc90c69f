"""Reference of the head-heavy schedule: units are rows, requests are runs, the first slots take one more."""

from __future__ import annotations

import torch

from adaverify_contracts import LayoutError
from adaverify_metadata.ops.tail_heavy.reference import splits_of


def require_rows(lens: torch.Tensor, request_indices: torch.Tensor | None) -> None:
    """Require one index a row, and single-token rows where indices group them.

    Raises:
        LayoutError: they disagree.
    """
    if request_indices is None:
        return
    tokens = 1 if lens.dim() == 1 else lens.shape[1]
    if tokens != 1 or tuple(request_indices.shape) != (lens.shape[0],):
        raise LayoutError(
            "request indices do not describe these rows",
            arrived={"lens": tuple(lens.shape), "request_indices": tuple(request_indices.shape)},
            allowed="lens [M, 1] or [M] with request_indices [M]",
            remedy="pass the indices the same strategy built",
        )


def run_starts(request_indices: torch.Tensor) -> torch.Tensor:
    """Return int64 [M]: first row of each row's maximal run of equal neighbours."""
    rows = torch.arange(len(request_indices), device=request_indices.device)
    opens = torch.ones_like(request_indices, dtype=torch.bool)
    opens[1:] = request_indices[1:] != request_indices[:-1]
    return torch.where(opens, rows, 0).cummax(0).values if len(rows) else rows


def run_cost(size: torch.Tensor, row_group: int) -> torch.Tensor:
    """Return the cost of one split of a run: its rows, plus what loading row groups costs if they matter.

    With ``row_group`` g > 0 it is ``2 g ceil(rows / g) + rows``, else ``rows`` (deepgemm sections 8.2, 8.3).
    """
    return size if not row_group else 2 * row_group * ((size + row_group - 1) // row_group) + size


def schedule_head_heavy(
    lens: torch.Tensor,
    slots: int,
    request_indices: torch.Tensor | None = None,
    *,
    split: int = 256,
    row_group: int = 0,
) -> torch.Tensor:
    """Return the schedule int32 [slots + 1, 2] of (first row, split) pairs, remainder first.

    A request is a maximal run of equal neighbouring indices, or without indices the N tokens of one row of
    ``lens``; its length is its last token's. Rows are counted in tokens.

    Args:
        lens: int32 [M] or [M, N]; with indices N = 1.
        slots: processors.
        request_indices: int32 [M] or None.
        split: KV positions in one split.
        row_group: rows that one load serves, 0 where it does not matter.

    Raises:
        LayoutError: indices and lengths disagree.
    """
    require_rows(lens, request_indices)
    splits, rows = splits_of(lens, split), lens.shape[0]
    number = torch.arange(rows, device=lens.device)
    if request_indices is None:
        tokens = 1 if lens.dim() == 1 else lens.shape[1]
        first, size, closes = number * tokens, torch.full_like(number, tokens), number >= 0
    else:
        tokens = 1
        first = run_starts(request_indices)
        size, closes = number - first + 1, torch.ones_like(number, dtype=torch.bool)
        closes[:-1] = first[1:] != first[:-1]
    cost = run_cost(size, row_group)
    work = torch.where(closes, splits * cost, 0)
    until = work.cumsum(0)
    total = work.sum()
    slot = torch.arange(slots + 1, device=lens.device)
    start = slot * (total // slots) + torch.minimum(slot, total % slots)
    row = torch.searchsorted(until, start, right=True)
    past = torch.cat([first, first.new_full((1,), rows * tokens)])
    before = torch.cat([until - work, total[None]])
    per_split = torch.cat([cost, cost.new_ones(1)])
    return torch.stack([past[row], (start - before[row]) // per_split[row]], dim=1).int()
