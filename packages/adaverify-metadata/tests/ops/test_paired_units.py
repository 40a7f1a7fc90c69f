"""The paired-units schedule: tables worked by hand (deepgemm section 8.3), kernel and reference equal."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import LayoutError, Limits, LimitsError
from adaverify_metadata import PairedUnitsSchedule, schedule_paired_units
from adaverify_metadata.ops.paired_units.reference import pair_starts
from adaverify_metadata.ops.schedule_launch import MAX_SCHEDULE_ROWS

INDICES = [0, 0, 0, 1, 2, 2]
LENS = [598, 599, 600, 0, 1000, 1001]
LIMITS = Limits(max_requests=16, draft_tokens=0, max_model_len=3000, page_size=64)


def column(kit, values):
    """Make int32 [M, 1] on the test device."""
    return torch.tensor(values, dtype=torch.int32, device=kit.device)[:, None]


def test_rows_pair_up_greedily():
    """Units open at rows 0, 2, 3, 4."""
    assert pair_starts(torch.tensor(INDICES)).nonzero().flatten().tolist() == [0, 2, 3, 4]


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize(
    ("lens", "expected"),
    [
        # n = 3, 3, 0, 4; T = 10; starts 0, 2, 4, 7, 10.
        (LENS, [[0, 0], [0, 2], [2, 1], [4, 1], [6, 0]]),
        # With max(len, 1): T = 11; starts 0, 2, 5, 8, 11.
        ([max(1, length) for length in LENS], [[0, 0], [0, 2], [2, 2], [4, 1], [6, 0]]),
    ],
)
def test_the_worked_tables(kit, backend, lens, expected):
    builder = PairedUnitsSchedule(LIMITS, kit.device, 4, backend=backend)
    builder.schedule.fill_(kit.poison_value)
    assert builder.build(column(kit, lens), column(kit, INDICES)[:, 0]).tolist() == expected


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_nothing_to_do_points_past_the_end(kit, backend):
    """All lengths zero, and no rows at all."""
    builder = PairedUnitsSchedule(LIMITS, kit.device, 3, backend=backend)
    assert builder.build(column(kit, [0, 0]), column(kit, [0, 0])[:, 0]).tolist() == [[2, 0]] * 4
    empty = torch.zeros(0, 1, dtype=torch.int32, device=kit.device)
    assert builder.build(empty, empty[:, 0]).tolist() == [[0, 0]] * 4


@settings(max_examples=12, deadline=None)
@given(
    runs=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(-1, 3000)), max_size=3),
    slots=st.sampled_from([1, 4, 5]),
    split=st.sampled_from([1, 256]),
    clamp=st.booleans(),
)
def test_the_kernel_equals_the_reference(kit, runs, slots, split, clamp):
    """Odd and even runs, negative and zero lengths; the same id may come back later as another request."""
    ids = [request for request, size, _ in runs for _ in range(size)]
    lens = [last - size + 1 + j for _, size, last in runs for j in range(size)]
    rows, indices = column(kit, lens).clamp(min=1 if clamp else -7), column(kit, ids)[:, 0]
    builder = PairedUnitsSchedule(LIMITS, kit.device, slots, backend="triton", split=split)
    builder.schedule.fill_(kit.poison_value)
    want = schedule_paired_units(rows, slots, indices, split=split)
    assert torch.equal(builder.build(rows, indices), want)


def test_the_address_never_changes(kit):
    builder = PairedUnitsSchedule(LIMITS, kit.device, 4, backend="triton")
    before = builder.schedule.data_ptr()
    for size in (6, 2):
        made = builder.build(column(kit, LENS[:size]), column(kit, INDICES[:size])[:, 0])
        assert made.data_ptr() == before


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_the_builder_needs_indices(kit, backend):
    """It is a rule over runs, so lengths alone do not say what a unit is."""
    builder = PairedUnitsSchedule(LIMITS, kit.device, 4, backend=backend)
    with pytest.raises(LayoutError, match="need request indices"):
        builder.build(column(kit, LENS))


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_indices_that_do_not_fit_the_rows_are_refused(kit, backend):
    """Two tokens a row cannot be grouped by an index a row."""
    builder = PairedUnitsSchedule(LIMITS, kit.device, 2, backend=backend)
    lens = torch.zeros(3, 2, dtype=torch.int32, device=kit.device)
    with pytest.raises(LayoutError, match="request indices"):
        builder.build(lens, lens[:, 0].contiguous())


def test_more_rows_than_one_program_holds_are_refused():
    many = Limits(max_requests=MAX_SCHEDULE_ROWS + 1, draft_tokens=0, max_model_len=100, page_size=64)
    with pytest.raises(LimitsError, match="too many rows"):
        PairedUnitsSchedule(many, "cpu", 4, backend="triton")
