"""The gather of a step's rows from request slots: kernel equal to reference, padding inert."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from adaverify_contracts import DraftState
from adaverify_engine.ops.gather_rows.launch import gather_rows
from adaverify_engine.ops.gather_rows.layout import StepRows

POISON = 77


def state_of(slots: int, drafts: int, columns: int, seed: int = 0) -> DraftState:
    random = torch.Generator().manual_seed(seed)

    def ints(high, *shape):
        return torch.randint(0, high, shape, generator=random, dtype=torch.int32)

    return DraftState(
        history=ints(1000, slots, columns),
        length=ints(columns, slots),
        drafts=ints(1000, slots, drafts),
        scores=torch.randn(slots, drafts, generator=random),
        scheduled=torch.full((slots,), drafts, dtype=torch.int32),
        hits=torch.zeros(slots),
        trials=torch.zeros(slots),
    )


def rows_of(count: int, drafts: int, width: int) -> StepRows:
    """Return poisoned rows."""

    def full(dtype, *shape):
        return torch.full(shape, POISON, dtype=dtype)

    return StepRows(
        certain=full(torch.int64, count),
        drafts=full(torch.int64, count, drafts),
        scheduled=full(torch.int32, count),
        kv_lens=full(torch.int32, count),
        scores=full(torch.float32, count, drafts),
        slots=full(torch.int64, count),
        block_table=full(torch.int32, count, width),
    )


@pytest.mark.parametrize("drafting", [True, False])
@pytest.mark.parametrize("drafts", [0, 1, 7, 15])
@pytest.mark.parametrize("width", [1, 5, 1025])
def test_kernel_equals_reference(drafts, width, drafting):
    """Every field of every row, padding in the middle included; rows past R are not touched."""
    state, tables = state_of(6, drafts, 40), torch.randint(1, 99, (6, width), dtype=torch.int32)
    row_slot = torch.tensor([3, -1, 0, 5, -1], dtype=torch.int32)
    expected, got = rows_of(7, drafts, width), rows_of(7, drafts, width)
    gather_rows(row_slot, state, tables, expected, drafting=drafting, backend="torch")
    gather_rows(row_slot, state, tables, got, drafting=drafting, backend="triton")
    for field in fields(StepRows):
        assert torch.equal(getattr(got, field.name), getattr(expected, field.name)), field.name
        assert (getattr(got, field.name)[5:] == POISON).all(), field.name


def test_rows_by_hand():
    """One request of 4 tokens in slot 1 and a padding row."""
    state, tables = state_of(2, 2, 8), torch.tensor([[9, 9], [4, 6]], dtype=torch.int32)
    state.history[1, :4] = torch.tensor([10, 11, 12, 13], dtype=torch.int32)
    state.length[1] = 4
    rows = rows_of(2, 2, 2)
    gather_rows(torch.tensor([1, -1], dtype=torch.int32), state, tables, rows, drafting=True, backend="torch")
    assert rows.certain.tolist() == [13, 0]
    assert rows.kv_lens.tolist() == [3, 0]
    assert rows.scheduled.tolist() == [2, -1]
    assert rows.slots.tolist() == [1, -1]
    assert rows.block_table.tolist() == [[4, 6], [0, 0]]
    assert rows.drafts.tolist() == [state.drafts[1].tolist(), [-1, -1]]
    assert rows.scores.tolist() == [state.scores[1].tolist(), [0.0, 0.0]]


def test_no_rows_and_a_slot_of_length_zero():
    """R = 0 writes nothing; an empty slot has KV length 0 and reads its first column."""
    state, tables = state_of(1, 3, 4), torch.zeros((1, 1), dtype=torch.int32)
    for backend in ("torch", "triton"):
        rows = rows_of(1, 3, 1)
        gather_rows(torch.zeros(0, dtype=torch.int32), state, tables, rows, drafting=True, backend=backend)
        assert (rows.certain == POISON).all()
        state.length.zero_()
        gather_rows(torch.zeros(1, dtype=torch.int32), state, tables, rows, drafting=True, backend=backend)
        assert rows.kv_lens.tolist() == [0]
