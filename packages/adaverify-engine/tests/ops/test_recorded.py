"""Rows and cursors of recorded steps: by hand, kernel against reference, and faults."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from adaverify_contracts import LayoutError, Limits
from adaverify_engine.ops.recorded.launch import accept_recorded, gather_recorded
from adaverify_engine.ops.recorded.layout import RecordRows, RecordSlots, RecordTables
from adaverify_engine.results import StepResults

BACKENDS = ["torch", "triton"]
POISON = -777


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def slots_of(count, positions, width=3, seed=0):
    made = torch.Generator().manual_seed(seed)

    def draw(high, *shape):
        return torch.randint(0, high, shape, dtype=torch.int32, generator=made)

    return RecordSlots(
        cursor=draw(positions, count),
        begin=torch.zeros(count, dtype=torch.int32),
        end=torch.full((count,), positions, dtype=torch.int32),
        kv_len=draw(40, count),
        prefix=draw(2, count),
        block_table=draw(99, count, width),
        control=ints(3, 0),
    )


def rows_of(count, drafts, width=3):
    def full(kind, *shape):
        return torch.full(shape, POISON, dtype=kind)

    return RecordRows(
        scheduled=full(torch.int32, count),
        kv_lens=full(torch.int32, count),
        scores=full(torch.float32, count, drafts),
        slots=full(torch.int64, count),
        block_table=full(torch.int32, count, width),
    )


def results_of(requests, drafts):
    limits = Limits(requests, drafts, 64, 4)
    return StepResults.over(torch.full((StepResults.size(limits),), POISON, dtype=torch.int32), limits)


def tables_of(positions, drafts, seed=0):
    made = torch.Generator().manual_seed(seed)
    scores = torch.randn(positions, drafts, generator=made)
    accepted = torch.randint(0, drafts + 1, (positions,), dtype=torch.int32, generator=made)
    return RecordTables(scores, accepted)


def clone(state):
    return type(state)(*(getattr(state, field.name).clone() for field in fields(state)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_is_what_the_record_says_at_its_cursor(backend):
    tables = RecordTables(torch.tensor([[0.5, -1.0], [2.0, 3.0]]), ints(1, 2))
    state = slots_of(2, 2)
    state.cursor.copy_(ints(0, 1))
    state.kv_len.copy_(ints(5, 9))
    rows = rows_of(3, 2)
    gather_recorded(ints(1, -1), tables, state, rows, backend=backend)
    assert rows.scores[:2].tolist() == [[2.0, 3.0], [0.0, 0.0]]
    assert rows.scheduled.tolist() == [3, -1, POISON]
    assert rows.kv_lens.tolist() == [9, 0, POISON]
    assert rows.slots.tolist() == [1, -1, POISON]
    assert rows.block_table[:2].tolist() == [state.block_table[1].tolist(), [0, 0, 0]]
    state.control.copy_(ints(2, 1))
    state.prefix.copy_(ints(0, 1))
    gather_recorded(ints(1, 0), tables, state, rows, backend=backend)
    assert rows.scores[:2].tolist() == [[2.0, 3.0], [0.5, -1.0]]
    assert rows.scheduled[:2].tolist() == [1, 0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("admitted", "recorded", "cursor", "accepted", "after"),
    [
        (3, 2, 10, 2, 13),  # the record rejects the third
        (1, 3, 10, 1, 12),  # trimmed: one would have been accepted behind it
        (0, 3, 10, 0, 11),
        (3, 3, 18, 3, 2),  # past the end of its sequence 0 .. 19
        (3, 3, 16, 3, 0),
    ],
)
def test_a_request_moves_on_by_hand(backend, admitted, recorded, cursor, accepted, after):
    tables = tables_of(20, 3)
    tables.accepted.fill_(recorded)
    state = slots_of(2, 20)
    state.cursor.copy_(ints(cursor, 4))
    state.kv_len.copy_(ints(30, 7))
    results = results_of(2, 3)
    picked, scores = torch.arange(40, 44, dtype=torch.int32), torch.randn(2, 3)
    loc = ints(0, admitted + 1, admitted + 1)
    accept_recorded(
        ints(0, -1), ints(admitted, 0), loc, picked, scores, tables, state, results,
        start=8, bound=32, backend=backend,
    )  # fmt: skip
    assert results.accepted.tolist() == [accepted, 0]
    assert results.admitted.tolist() == [admitted, 0]
    assert results.tokens[0].tolist() == [40 + j if j <= accepted else -1 for j in range(4)]
    assert results.tokens[1].tolist() == [-1] * 4
    assert torch.equal(results.scores, scores)
    assert state.cursor.tolist() == [after, 4]
    moved = 30 + accepted + 1
    assert state.kv_len.tolist() == [8 if moved > 32 else moved, 7]


@pytest.mark.parametrize("forced", [0, 1])
@pytest.mark.parametrize("drafts", [1, 7, 15])
@pytest.mark.parametrize("width", [1, 5, 1025])
def test_kernels_equal_references(drafts, width, forced):
    """Every field, padding in the middle included; rows past R and slots that do not run are not touched."""
    tables, state = tables_of(50, drafts), slots_of(6, 50, width)
    state.control[1] = forced
    row_slot = ints(3, -1, 0, 5, -1)
    admitted = torch.where(row_slot >= 0, torch.randint(0, drafts + 1, (5,), dtype=torch.int32), 0)
    lens = torch.where(row_slot >= 0, admitted + 1, 0)
    loc = torch.cat([ints(0), lens.cumsum(0).int()])
    picked = torch.randint(0, 1000, (int(loc[-1]) + 3,), dtype=torch.int32)
    outcomes = []
    for backend in BACKENDS:
        mine, rows, results = clone(state), rows_of(7, drafts, width), results_of(6, drafts)
        gather_recorded(row_slot, tables, mine, rows, backend=backend)
        accept_recorded(
            row_slot, admitted, loc, picked, rows.scores, tables, mine, results,
            start=8, bound=32, backend=backend,
        )  # fmt: skip
        outcomes.append((rows, mine, results))
    for one, other in zip(*outcomes, strict=True):
        for field in fields(one):
            left, right = getattr(one, field.name), getattr(other, field.name)
            # By bits: what nobody wrote is a float that is no number.
            assert left.numpy().tobytes() == right.numpy().tobytes(), field.name
    rows, mine, results = outcomes[0]
    assert (rows.kv_lens[5:] == POISON).all()
    assert (results.accepted[5:] == POISON).all()
    assert torch.equal(mine.cursor[[1, 2, 4]], state.cursor[[1, 2, 4]])


def test_an_unknown_backend_is_refused():
    tables, state = tables_of(20, 3), slots_of(2, 20)
    with pytest.raises(LayoutError, match="backend"):
        gather_recorded(ints(0), tables, state, rows_of(1, 3), backend="numpy")
