"""One launch writes the head-heavy schedule: each program finds the pair of one slot."""

import triton.language as tl

from adaverify_metadata._jit import device


@device()
def larger(left: tl.tensor, right: tl.tensor) -> tl.tensor:
    """Return the larger of two; the scan that carries each run's first row along."""
    return tl.maximum(left, right)


@device()
def split_cost(size: tl.tensor, ROW_GROUP: tl.constexpr) -> tl.tensor:
    """Return what one split of a run of ``size`` rows costs."""
    cost = size
    if ROW_GROUP > 0:
        cost = 2 * ROW_GROUP * ((size + ROW_GROUP - 1) // ROW_GROUP) + size
    return cost


@device(
    do_not_specialize=["rows", "width", "slots"],
    do_not_specialize_on_alignment=["lens", "indices", "schedule"],
)
def head_heavy_kernel(
    lens: tl.tensor,
    indices: tl.tensor,
    schedule: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    slots: tl.tensor,
    ROWS: tl.constexpr,
    SPLIT: tl.constexpr,
    ROW_GROUP: tl.constexpr,
    RUNS: tl.constexpr,
) -> None:
    """start(i) = i q + min(i, r); pair i is the first request whose prefix of work exceeds start(i).

    A request is a run of equal neighbouring indices; its work, splits of its last row times the cost of one,
    is counted at its last row. Without indices a request is one row of ``lens``, ``width`` tokens.
    """
    slot = tl.program_id(0)
    row = tl.arange(0, ROWS)
    there = row < rows
    length = tl.maximum(tl.load(lens + (row + 1) * width - 1, mask=there, other=0), 0)
    splits = length // SPLIT + (length % SPLIT != 0).to(tl.int32)
    if RUNS:
        own = tl.load(indices + row, mask=there, other=0)
        left = tl.load(indices + row - 1, mask=there & (row > 0), other=0)
        right = tl.load(indices + row + 1, mask=row + 1 < rows, other=0)
        opens = (row == 0) | (own != left)
        closes = there & ((row == rows - 1) | (own != right))
        first = tl.associative_scan(tl.where(opens, row, 0), 0, larger)
        cost = split_cost(row - first + 1, ROW_GROUP)
        work = tl.where(closes, splits * cost, 0)
    else:
        first = row * width
        cost = split_cost(row * 0 + width, ROW_GROUP)
        work = splits * cost
    until = tl.cumsum(work, 0)
    total = tl.sum(work, 0)
    start = slot * (total // slots) + tl.minimum(slot, total % slots)

    done = (until <= start) & there
    found = tl.sum(done.to(tl.int32), 0)
    inside = start - tl.sum(tl.where(done, work, 0), 0)
    found_first = tl.sum(tl.where(row == found, first, 0), 0)
    found_cost = tl.maximum(tl.sum(tl.where(row == found, cost, 0), 0), 1)
    past = found >= rows
    tl.store(schedule + 2 * slot, tl.where(past, rows * width, found_first))
    tl.store(schedule + 2 * slot + 1, tl.where(past, 0, inside // found_cost))
