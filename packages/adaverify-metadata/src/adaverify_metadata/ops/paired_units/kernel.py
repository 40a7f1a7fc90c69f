"""One launch writes the paired-units schedule: each program finds the pair of one slot."""

import triton.language as tl

from adaverify_metadata._jit import device
from adaverify_metadata.ops.head_heavy.kernel import larger


@device(
    do_not_specialize=["rows", "slots"],
    do_not_specialize_on_alignment=["lens", "indices", "schedule"],
)
def paired_units_kernel(
    lens: tl.tensor,
    indices: tl.tensor,
    schedule: tl.tensor,
    rows: tl.tensor,
    slots: tl.tensor,
    ROWS: tl.constexpr,
    SPLIT: tl.constexpr,
) -> None:
    """start(i) = i q + max(0, i - (slots - r)); pair i is the first unit whose prefix exceeds start(i).

    A unit is two neighbouring rows of one run, counted from the run's first, or the odd row at its end. Its
    splits are its last row's and are counted there.
    """
    slot = tl.program_id(0)
    row = tl.arange(0, ROWS)
    there = row < rows
    length = tl.maximum(tl.load(lens + row, mask=there, other=0), 0)
    splits = length // SPLIT + (length % SPLIT != 0).to(tl.int32)
    own = tl.load(indices + row, mask=there, other=0)
    left = tl.load(indices + row - 1, mask=there & (row > 0), other=0)
    right = tl.load(indices + row + 1, mask=row + 1 < rows, other=0)
    first = tl.associative_scan(tl.where((row == 0) | (own != left), row, 0), 0, larger)
    second = (row - first) % 2
    closes = there & ((row == rows - 1) | (own != right) | (second == 1))
    work = tl.where(closes, splits, 0)
    until = tl.cumsum(work, 0)
    total = tl.sum(work, 0)
    more = total % slots
    start = slot * (total // slots) + tl.maximum(slot - (slots - more), 0)

    done = (until <= start) & there
    # The row found closes its unit: only there does the prefix grow.
    found = tl.sum(done.to(tl.int32), 0)
    inside = start - tl.sum(tl.where(done, work, 0), 0)
    opened = found - tl.sum(tl.where(row == found, second, 0), 0)
    tl.store(schedule + 2 * slot, tl.where(found >= rows, rows, opened))
    tl.store(schedule + 2 * slot + 1, inside)
