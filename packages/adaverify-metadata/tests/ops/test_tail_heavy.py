"""The tail-heavy schedule: tables worked by hand (deepgemm section 8.1), kernel and reference equal."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import LayoutError, Limits
from adaverify_metadata import TailHeavySchedule, schedule_tail_heavy

LENS = [300, 0, 1000, 257]
CLAMPED = [300, 1, 1000, 257]
EXAMPLE = [8, 9, 10, 7, 9, 10, 11, 12, 1, 1]
# lengths, atoms, slots, pairs as (pair, times), end mark
TABLE = [
    (LENS, 1, 4, [((0, 0), 1), ((2, 0), 1), ((2, 2), 1), ((3, 0), 1)], (4, 0)),
    (
        LENS,
        1,
        16,
        [((0, 0), 9), *[(p, 1) for p in [(0, 1), (2, 0), (2, 1), (2, 2), (2, 3), (3, 0), (3, 1)]]],
        (4, 0),
    ),
    (
        LENS,
        1,
        132,
        [((0, 0), 125), *[(p, 1) for p in [(0, 1), (2, 0), (2, 1), (2, 2), (2, 3), (3, 0), (3, 1)]]],
        (4, 0),
    ),
    (CLAMPED, 1, 4, [((0, 0), 1), ((1, 0), 1), ((2, 1), 1), ((2, 3), 1)], (4, 0)),
    (
        CLAMPED,
        1,
        132,
        [
            ((0, 0), 124),
            *[(p, 1) for p in [(0, 1), (1, 0), (2, 0), (2, 1), (2, 2), (2, 3), (3, 0), (3, 1)]],
        ],
        (4, 0),
    ),
    (EXAMPLE, 1, 132, [((0, 0), 123), *[((row, 0), 1) for row in range(1, 10)]], (10, 0)),
    ([0] * 32, 1, 7, [((31, 0), 7)], (32, 0)),
    (LENS, 2, 4, [((0, 0), 1), ((4, 0), 1), ((5, 0), 1), ((6, 0), 1)], (8, 0)),
]


def expand(pairs, end):
    """List the pairs of a table row."""
    return [list(pair) for pair, times in pairs for _ in range(times)] + [list(end)]


@pytest.mark.parametrize(("lens", "atoms", "slots", "pairs", "end"), TABLE)
def test_the_worked_tables(lens, atoms, slots, pairs, end):
    """Every line of the table, the reference's clamp for all-zero lengths included."""
    found = schedule_tail_heavy(torch.tensor(lens, dtype=torch.int32), slots, atoms=atoms)
    assert found.tolist() == expand(pairs, end)
    assert found.dtype == torch.int32


@pytest.mark.parametrize(("lens", "atoms", "slots", "pairs", "end"), [row for row in TABLE if row[2] <= 16])
def test_the_kernel_on_the_worked_tables(kit, lens, atoms, slots, pairs, end):
    """The launch writes the same integers, over poison."""
    limits = Limits(max_requests=32, draft_tokens=0, max_model_len=1024, page_size=64)
    builder = TailHeavySchedule(limits, kit.device, slots, backend="triton", atoms=atoms)
    builder.schedule.fill_(kit.poison_value)
    column = torch.tensor(lens, dtype=torch.int32, device=kit.device)[:, None]
    assert builder.build(column).tolist() == expand(pairs, end)


@settings(max_examples=10, deadline=None)
@given(
    lens=st.lists(st.integers(-1, 3000), min_size=1, max_size=20),
    width=st.sampled_from([1, 2, 3]),
    slots=st.sampled_from([1, 4, 7]),
    atoms=st.sampled_from([1, 2]),
    split=st.sampled_from([256, 384]),
)
def test_the_kernel_equals_the_reference(kit, lens, width, slots, atoms, split):
    """Only the last column counts, whatever the earlier ones hold."""
    limits = Limits(max_requests=20, draft_tokens=0, max_model_len=3000, page_size=64)
    columns = torch.tensor(lens, dtype=torch.int32, device=kit.device)[:, None].expand(-1, width).contiguous()
    columns[:, : width - 1] = 77
    builder = TailHeavySchedule(limits, kit.device, slots, backend="triton", atoms=atoms, split=split)
    assert torch.equal(builder.build(columns), schedule_tail_heavy(columns, slots, split, atoms))


# true lengths, atoms, slots, pairs, end mark; schedule lengths are max(length, 1)
CUT = [
    # Two padding rows behind six splits; the empty row in between counts as one.
    ([300, 0, 600, 0, 0], 1, 3, [((0, 0), 1), ((1, 0), 1), ((2, 1), 1)], (3, 0)),
    ([300, 0, 600], 1, 3, [((0, 0), 1), ((1, 0), 1), ((2, 1), 1)], (3, 0)),
    ([0, 300, 0], 2, 2, [((0, 0), 1), ((2, 1), 1)], (4, 0)),
    ([0, 0, 0], 1, 4, [((0, 0), 4)], (0, 0)),
]


@pytest.mark.parametrize(("lens", "atoms", "slots", "pairs", "end"), CUT)
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_trailing_empty_rows_are_left_out(kit, backend, lens, atoms, slots, pairs, end):
    """Empty rows in between keep their split; a batch of nothing gives every slot an empty range."""
    limits = Limits(max_requests=32, draft_tokens=0, max_model_len=1024, page_size=64)
    builder = TailHeavySchedule(limits, kit.device, slots, backend=backend, atoms=atoms)
    builder.schedule.fill_(kit.poison_value)
    true = torch.tensor(lens, dtype=torch.int32, device=kit.device)[:, None]
    found = builder.build(true.clamp(min=1), row_lens=true)
    assert found.tolist() == expand(pairs, end)


@settings(max_examples=10, deadline=None)
@given(
    lens=st.lists(st.sampled_from([0, 0, 1, 256, 700]), min_size=1, max_size=20),
    width=st.sampled_from([1, 2]),
    slots=st.sampled_from([1, 4, 7]),
    atoms=st.sampled_from([1, 2]),
)
def test_the_kernel_leaves_out_what_the_reference_does(kit, lens, width, slots, atoms):
    """By the last column of the true lengths; the earlier one is empty where a pair is half full."""
    limits = Limits(max_requests=20, draft_tokens=0, max_model_len=1000, page_size=64)
    true = torch.zeros(len(lens), width, dtype=torch.int32, device=kit.device)
    true[:, -1] = torch.tensor(lens, dtype=torch.int32, device=kit.device)
    builder = TailHeavySchedule(limits, kit.device, slots, backend="triton", atoms=atoms)
    want = schedule_tail_heavy(true.clamp(min=1), slots, atoms=atoms, row_lens=true)
    assert torch.equal(builder.build(true.clamp(min=1), row_lens=true), want)
    with pytest.raises(LayoutError, match="true lengths"):
        builder.build(true.clamp(min=1), row_lens=true[1:])


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_no_rows_give_empty_ranges(kit, backend):
    """B = 0: every slot owns nothing."""
    limits = Limits(max_requests=4, draft_tokens=0, max_model_len=1024, page_size=64)
    builder = TailHeavySchedule(limits, kit.device, 3, backend=backend)
    assert builder.build(torch.zeros(0, 1, dtype=torch.int32, device=kit.device)).tolist() == [[0, 0]] * 4
