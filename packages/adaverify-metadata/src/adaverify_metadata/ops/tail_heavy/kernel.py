"""One launch writes the tail-heavy schedule: each program finds the pair of one slot."""

import triton.language as tl

from adaverify_metadata._jit import device


@device(
    do_not_specialize=["rows", "width", "slots"],
    do_not_specialize_on_alignment=["lens", "row_lens", "schedule"],
)
def tail_heavy_kernel(
    lens: tl.tensor,
    row_lens: tl.tensor,
    schedule: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    slots: tl.tensor,
    ROWS: tl.constexpr,
    SPLIT: tl.constexpr,
    ATOMS: tl.constexpr,
    CUT: tl.constexpr,
) -> None:
    """start(i) = i q + max(0, i - (slots - r)); pair i is the first row whose prefix exceeds start(i).

    With CUT the rows end behind the last one whose true length in ``row_lens`` is not 0. Every program sums
    all rows itself: one scan and two sums each, and no hand-over between programs.
    """
    slot = tl.program_id(0)
    row = tl.arange(0, ROWS)
    if CUT:
        seen = tl.load(row_lens + (row + 1) * width - 1, mask=row < rows, other=0)
        rows = tl.max(tl.where(seen > 0, row + 1, 0), 0)
    length = tl.load(lens + (row + 1) * width - 1, mask=row < rows, other=0)
    length = tl.maximum(length, 0)
    tasks = (length // SPLIT + (length % SPLIT != 0).to(tl.int32)) * ATOMS
    until = tl.cumsum(tasks, 0)
    total = tl.sum(tasks, 0)
    more = total % slots
    start = slot * (total // slots) + tl.maximum(slot - (slots - more), 0)

    done = (until <= start) & (row < rows)
    # With every row empty none is left; the clamp keeps the walk's reads in bounds.
    found = tl.maximum(tl.minimum(tl.sum(done.to(tl.int32), 0), rows - 1), 0)
    inside = start - tl.sum(tl.where(done, tasks, 0), 0)
    size = tl.sum(tl.where(row == found, tasks, 0), 0) // ATOMS
    size = tl.maximum(size, 1)
    last = slot == slots
    tl.store(schedule + 2 * slot, tl.where(last, rows * ATOMS, found * ATOMS + inside // size))
    tl.store(schedule + 2 * slot + 1, tl.where(last, 0, inside % size))
