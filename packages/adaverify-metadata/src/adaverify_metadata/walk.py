"""What a kernel does with a schedule, in plain Python: every split done once, and nobody hangs.

These simulators restate the walking rules of deepgemm section 8. They run on host lists, for tests and for
the question "is this schedule safe for these lengths".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Walk:
    """What every slot did.

    Attributes:
        tasks: for each slot, its (row, split) tasks in order; a row without splits shows as (row, -1), the
            dummy task some kernels run for it.
        runaways: slots that passed their end mark and would never stop, or whose split count is negative.
    """

    tasks: tuple[tuple[Pair, ...], ...]
    runaways: tuple[int, ...]

    @property
    def done(self) -> Counter[Pair]:
        """How often each real (row, split) was done, over all slots."""
        return Counter(task for slot in self.tasks for task in slot if task[1] >= 0)

    @property
    def dummies(self) -> int:
        """Tasks spent on rows without splits."""
        return sum(split < 0 for slot in self.tasks for _, split in slot)


def _pairs(schedule: torch.Tensor) -> list[Pair]:
    return [(int(unit), int(split)) for unit, split in schedule.tolist()]


def _splits(lens: torch.Tensor, split: int) -> list[int]:
    last = lens if lens.dim() == 1 else lens[:, -1]
    return [-(-max(0, int(length)) // split) for length in last.tolist()]


def _until_met(begin: Pair, end: Pair, units: Sequence[tuple[int, int]], last: int) -> Iterator[Pair | None]:
    """Yield (unit, split) from ``begin`` until it *equals* ``end``; None once it can no longer be met.

    ``units`` are (name, splits) in order and ``last`` is the name past the end.
    """
    names = [name for name, _ in units]
    sizes = dict(units)
    unit, split = begin
    while (unit, split) != end:
        if unit not in sizes:
            yield None
            return
        yield (unit, split) if sizes[unit] else (unit, -1)
        split += 1
        if split >= sizes[unit]:
            after = names.index(unit) + 1
            unit, split = (names[after] if after < len(names) else last), 0


def walk_tail_heavy(schedule: torch.Tensor, lens: torch.Tensor, *, split: int = 256, atoms: int = 1) -> Walk:
    """Walk a tail-heavy schedule over the *true* lengths int32 [B] or [B, N]; tasks name units.

    A slot starts at its pair, takes the next split, moves to the next unit at the end of a row, and stops
    only on equality with the next pair.
    """
    sizes = [n for n in _splits(lens, split) for _ in range(atoms)]
    return _walk_by_equality(_pairs(schedule), list(enumerate(sizes)), len(sizes))


def walk_paired_units(
    schedule: torch.Tensor, lens: torch.Tensor, request_indices: torch.Tensor, *, split: int = 256
) -> Walk:
    """Walk a paired-units schedule over the true lengths; a task names the first row of its unit."""
    splits, ids = _splits(lens, split), request_indices.tolist()
    units, row = [], 0
    while row < len(ids):
        rows = 2 if row + 1 < len(ids) and ids[row + 1] == ids[row] else 1
        units.append((row, splits[row + rows - 1]))
        row += rows
    return _walk_by_equality(_pairs(schedule), units, len(ids))


def _walk_by_equality(pairs: list[Pair], units: list[tuple[int, int]], last: int) -> Walk:
    tasks, runaways = [], []
    for slot in range(len(pairs) - 1):
        steps = list(_until_met(pairs[slot], pairs[slot + 1], units, last))
        if steps and steps[-1] is None:
            runaways.append(slot)
        tasks.append(tuple(step for step in steps if step is not None))
    return Walk(tuple(tasks), tuple(runaways))


def walk_head_heavy(
    schedule: torch.Tensor,
    lens: torch.Tensor,
    request_indices: torch.Tensor | None = None,
    *,
    split: int = 256,
    rows_per_block: int = 2,
    chunk: int = 16,
) -> Walk:
    """Walk a head-heavy schedule over the true lengths; tasks name rows (tokens).

    A request of k rows is cut into ``ceil(k / rows_per_block)`` near-equal blocks, larger first, and all of
    them run over at most ``chunk`` splits before the next chunk. A slot ends by comparing positions, so it
    cannot run past its mark; but a mark beyond a request's splits makes a negative count, a runaway on
    unsigned counters.
    """
    pairs, splits, tasks, runaways = _pairs(schedule), _splits(lens, split), [], []
    requests = _requests(lens, request_indices, splits)
    for slot in range(len(pairs) - 1):
        (row, begin), (end_row, end) = pairs[slot], pairs[slot + 1]
        done: list[Pair] = []
        for first, size, count in requests:
            if first < row or first > end_row:
                continue
            low = begin if first == row else 0
            high = end if first == end_row else count
            if low > high or high > count:
                runaways.append(slot)
            elif count == 0 and first != end_row:
                done.extend((first + number, -1) for number in range(size))
            for chunk_low in range(low, high, chunk):
                across = range(chunk_low, min(high, chunk_low + chunk))
                done.extend(
                    (r, s) for block in _blocks(first, size, rows_per_block) for s in across for r in block
                )
        tasks.append(tuple(done))
    return Walk(tuple(tasks), tuple(dict.fromkeys(runaways)))


def _requests(
    lens: torch.Tensor, request_indices: torch.Tensor | None, splits: list[int]
) -> list[tuple[int, int, int]]:
    """Return (first row, rows, splits) of each request."""
    if request_indices is None:
        tokens = 1 if lens.dim() == 1 else lens.shape[1]
        return [(number * tokens, tokens, count) for number, count in enumerate(splits)]
    requests: list[tuple[int, int, int]] = []
    ids = request_indices.tolist()
    for row, count in enumerate(splits):
        if requests and ids[row] == ids[row - 1]:
            first, size, _ = requests.pop()
            requests.append((first, size + 1, count))
        else:
            requests.append((row, 1, count))
    return requests


def _blocks(first: int, size: int, limit: int) -> Iterator[range]:
    """Yield the rows of each block: as few blocks as ``limit`` allows, near-equal, larger first."""
    count = -(-size // limit)
    for number in range(count):
        rows = size // count + (number < size % count)
        yield range(first, first + rows)
        first += rows
