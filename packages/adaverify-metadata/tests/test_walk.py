"""What the kernels do with a schedule: every split once, dummies as counted, and runaways seen."""

from __future__ import annotations

from collections import Counter

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_metadata import (
    schedule_head_heavy,
    schedule_paired_units,
    schedule_tail_heavy,
    walk_head_heavy,
    walk_paired_units,
    walk_tail_heavy,
)

LENS = torch.tensor([300, 0, 1000, 257])
RUN_LENS = torch.tensor([598, 599, 600, 0, 1000, 1001])
RUNS = torch.tensor([0, 0, 0, 1, 2, 2])


def splits(length):
    """Count the splits of one length."""
    return -(-length // 256)


def drawn_runs(runs):
    """Return lengths and indices of drawn (rows, last length) runs, each its own request."""
    lens = [max(0, last - size + 1 + j) for size, last in runs for j in range(size)]
    ids = [request for request, (size, _) in enumerate(runs) for _ in range(size)]
    return torch.tensor(lens, dtype=torch.int64), torch.tensor(ids, dtype=torch.int64)


def test_the_worked_walks_of_the_tail_heavy_schedule():
    """Slot by slot, dummies included (deepgemm section 8.1)."""
    walk = walk_tail_heavy(schedule_tail_heavy(LENS, 4), LENS)
    assert walk.tasks[0] == ((0, 0), (0, 1), (1, -1))
    assert walk.tasks[3] == ((3, 0), (3, 1))
    walk = walk_tail_heavy(schedule_tail_heavy(LENS.clamp(min=1), 4), LENS)
    assert walk.tasks == (
        ((0, 0), (0, 1)),
        ((1, -1), (2, 0)),
        ((2, 1), (2, 2)),
        ((2, 3), (3, 0), (3, 1)),
    )
    assert walk.runaways == ()


def test_the_worked_walk_of_the_head_heavy_schedule():
    """H = 64, so two rows a block (deepgemm section 8.2)."""
    walk = walk_head_heavy(schedule_head_heavy(RUN_LENS, 4, RUNS), RUN_LENS, RUNS)
    assert walk.tasks == (
        ((0, 0), (1, 0), (2, 0)),
        ((0, 1), (1, 1), (0, 2), (1, 2), (2, 1), (2, 2), (3, -1)),
        ((4, 0), (5, 0), (4, 1), (5, 1)),
        ((4, 2), (5, 2), (4, 3), (5, 3)),
    )
    assert walk.runaways == ()


def test_trailing_empty_rows_are_shared_out_by_the_clamp():
    """4 rows of 300 and 60 of 0: 61 tasks on one of 132 slots, 1 with max(len, 1) (deepgemm section 9 b)."""
    lens = torch.tensor([300] * 4 + [0] * 60)
    longest = {
        name: max(len(slot) for slot in walk_tail_heavy(schedule_tail_heavy(used, 132), lens).tasks)
        for name, used in {"true": lens, "clamped": lens.clamp(min=1)}.items()
    }
    assert longest == {"true": 61, "clamped": 1}


def test_a_schedule_of_longer_lengths_runs_away():
    """Built for 1024, run with 256: the end mark is never met, or the count goes negative (section 9 d)."""
    long, short = torch.full((4,), 1024), torch.full((4,), 256)
    assert walk_tail_heavy(schedule_tail_heavy(long, 8), short).runaways
    ids = torch.arange(4)
    assert walk_head_heavy(schedule_head_heavy(long, 8, ids), short, ids).runaways
    assert walk_paired_units(schedule_paired_units(long, 8, ids), short, ids).runaways


def test_a_schedule_of_shorter_lengths_is_right_but_unbalanced():
    """Built for 1024, run with 2048: everything is done once on the kernel that stops by equality."""
    lens = torch.full((4,), 2048)
    walk = walk_tail_heavy(schedule_tail_heavy(torch.full((4,), 1024), 8), lens)
    assert walk.runaways == ()
    assert walk.done == Counter({(row, split): 1 for row in range(4) for split in range(8)})
    assert {len(slot) for slot in walk.tasks} == {2, 6}


@settings(max_examples=80, deadline=None)
@given(
    lens=st.lists(st.one_of(st.just(0), st.integers(0, 2000)), min_size=1, max_size=24),
    slots=st.sampled_from([1, 4, 16, 78, 132]),
    atoms=st.sampled_from([1, 2]),
)
def test_the_tail_heavy_schedule_covers_each_split_once(lens, slots, atoms):
    """Built from max(len, 1), walked over the true lengths: one dummy for each empty unit, no runaway."""
    true = torch.tensor(lens)
    walk = walk_tail_heavy(schedule_tail_heavy(true.clamp(min=1), slots, atoms=atoms), true, atoms=atoms)
    assert walk.runaways == ()
    units = [splits(length) for length in lens for _ in range(atoms)]
    assert walk.done == Counter({(unit, s): 1 for unit, n in enumerate(units) for s in range(n)})
    assert walk.dummies == units.count(0)


@settings(max_examples=80, deadline=None)
@given(
    lens=st.lists(st.one_of(st.just(0), st.integers(0, 2000)), min_size=1, max_size=24),
    padding=st.integers(0, 9),
    slots=st.sampled_from([1, 4, 16, 78, 132]),
    atoms=st.sampled_from([1, 2]),
)
def test_padding_rows_are_never_walked(lens, padding, slots, atoms):
    """Rows behind the last that is not empty get no task; empty ones in front of it one dummy each."""
    true = torch.tensor([*lens, *[0] * padding])
    schedule = schedule_tail_heavy(true.clamp(min=1), slots, atoms=atoms, row_lens=true)
    walk = walk_tail_heavy(schedule, true, atoms=atoms)
    assert walk.runaways == ()
    units = [splits(length) for length in lens for _ in range(atoms)]
    assert walk.done == Counter({(unit, s): 1 for unit, n in enumerate(units) for s in range(n)})
    last = max((unit for unit, n in enumerate(units) if n), default=-1)
    assert walk.dummies == units[: last + 1].count(0)


@settings(max_examples=80, deadline=None)
@given(
    runs=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6000)), min_size=1, max_size=8),
    slots=st.sampled_from([1, 4, 16, 132, 148]),
    clamp=st.sampled_from([0, 1]),
)
def test_the_head_heavy_schedule_covers_each_row_and_split_once(runs, slots, clamp):
    """With and without the clamp; every row of a run does the splits of the run's last row."""
    lens, ids = drawn_runs(runs)
    walk = walk_head_heavy(schedule_head_heavy(lens.clamp(min=clamp), slots, ids), lens, ids)
    assert walk.runaways == ()
    want, row = Counter(), 0
    for size, last in runs:
        want.update((row + j, s) for j in range(size) for s in range(splits(last)))
        row += size
    assert walk.done == want


@settings(max_examples=80, deadline=None)
@given(
    runs=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2000)), min_size=1, max_size=8),
    slots=st.sampled_from([1, 4, 16, 132]),
)
def test_the_paired_units_schedule_covers_each_split_once(runs, slots):
    """Units of two rows or one; the clamp adds one dummy for each empty unit."""
    lens, ids = drawn_runs(runs)
    walk = walk_paired_units(schedule_paired_units(lens.clamp(min=1), slots, ids), lens, ids)
    assert walk.runaways == ()
    want, row, empty = Counter(), 0, 0
    for size, _ in runs:
        for j in range(0, size, 2):
            last = int(lens[row + min(j + 1, size - 1)])
            want.update((row + j, s) for s in range(splits(last)))
            empty += last == 0
        row += size
    assert walk.done == want
    assert walk.dummies == empty
