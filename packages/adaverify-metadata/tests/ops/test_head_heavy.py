"""The head-heavy schedule: tables worked by hand (deepgemm sections 8.2, 8.3), kernel and reference equal."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import LayoutError, Limits
from adaverify_metadata import HeadHeavySchedule, schedule_head_heavy

INDICES = [0, 0, 0, 1, 2, 2]
LENS = [598, 599, 600, 0, 1000, 1001]
LIMITS = Limits(max_requests=16, draft_tokens=0, max_model_len=3000, page_size=64)


def column(kit, values):
    """Make int32 [M, 1] on the test device."""
    return torch.tensor(values, dtype=torch.int32, device=kit.device)[:, None]


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # n = 3, 0, 4; work 9, 0, 8; starts 0, 5, 9, 13, 17.
        ({}, [[0, 0], [0, 1], [4, 0], [4, 2], [6, 0]]),
        # n = 2, 0, 3; cost 11 and 10 a split; total 52.
        ({"split": 384, "row_group": 4}, [[0, 0], [0, 1], [4, 0], [4, 1], [6, 0]]),
    ],
)
def test_the_worked_table_with_indices(kit, backend, options, expected):
    """Three runs over four slots, by both cost rules."""
    builder = HeadHeavySchedule(LIMITS, kit.device, 4, backend=backend, **options)
    builder.schedule.fill_(kit.poison_value)
    assert builder.build(column(kit, LENS), column(kit, INDICES)[:, 0]).tolist() == expected


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_the_worked_table_without_indices(kit, backend):
    """N = 2, request lengths 300, 0, 1000, 257."""
    lens = torch.tensor([[9, 300], [0, 0], [9, 1000], [9, 257]], dtype=torch.int32, device=kit.device)
    builder = HeadHeavySchedule(LIMITS, kit.device, 4, backend=backend)
    assert builder.build(lens).tolist() == [[0, 0], [4, 0], [4, 2], [6, 0], [8, 0]]


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_nothing_to_do_points_past_the_end(kit, backend):
    """All lengths zero, and no rows at all."""
    builder = HeadHeavySchedule(LIMITS, kit.device, 3, backend=backend)
    assert builder.build(column(kit, [0, 0]), column(kit, [0, 0])[:, 0]).tolist() == [[2, 0]] * 4
    empty = torch.zeros(0, 1, dtype=torch.int32, device=kit.device)
    assert builder.build(empty, empty[:, 0]).tolist() == [[0, 0]] * 4


@settings(max_examples=10, deadline=None)
@given(
    runs=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 3000)), max_size=4),
    slots=st.sampled_from([1, 4, 5]),
    row_group=st.sampled_from([0, 4]),
)
def test_the_kernel_equals_the_reference(kit, runs, slots, row_group):
    """Runs of any length; the same id may come back later as another request."""
    ids = [request for request, size, _ in runs for _ in range(size)]
    lens = [max(0, last - size + 1 + j) for _, size, last in runs for j in range(size)]
    rows, indices = column(kit, lens), column(kit, ids)[:, 0]
    builder = HeadHeavySchedule(LIMITS, kit.device, slots, backend="triton", row_group=row_group)
    want = schedule_head_heavy(rows, slots, indices, row_group=row_group)
    assert torch.equal(builder.build(rows, indices), want)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_indices_that_do_not_fit_the_rows_are_refused(kit, backend):
    """Two tokens a row cannot be grouped by an index a row."""
    builder = HeadHeavySchedule(LIMITS, kit.device, 2, backend=backend)
    lens = torch.zeros(3, 2, dtype=torch.int32, device=kit.device)
    with pytest.raises(LayoutError, match="request indices"):
        builder.build(lens, lens[:, 0].contiguous())
