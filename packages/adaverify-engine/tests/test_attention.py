"""Decode attention follows the rows: against the slot-by-slot reference, over views and gathers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import DecodeRows, ModelGeometry
from adaverify_engine.attention import ChunkAttention, DecodeAttention, attend_rows, locate
from adaverify_engine.attention.runs import arithmetic_runs, consecutive
from adaverify_engine.cache import PagedCache

PAGE = 4
GEOMETRY = ModelGeometry("toy", 1, 8, 6, 2, 8, 11, 64, ())
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
"""Relative to values near 1: float32 sums of 64 terms, bfloat16 has 8 bits."""


def make_rows(queries, lens, table, padded, width):
    """Return rows of ``width`` slots each for query and KV lengths, an odd request padded in front."""
    row_lens, row_token, owner = [], [], []
    slot_of = {}
    token = 0
    for request, (count, length) in enumerate(zip(queries, lens, strict=True)):
        slots = [-1] * (-count % width) + list(range(count))
        for at in range(0, len(slots), width):
            part = slots[at : at + width]
            row_lens.append([0 if j < 0 else length - count + j + 1 for j in part])
            row_token.append([-1 if j < 0 else token + j for j in part])
            owner.append(request)
            for column, j in enumerate(part):
                if j >= 0:
                    slot_of[token + j] = (len(owner) - 1) * width + column
        token += count
    rows = len(owner)
    while rows < padded:
        row_lens.append([0] * width)
        row_token.append([-1] * width)
        owner.append(len(queries) + rows)
        rows += 1
    spare = next((m * width for m in range(rows) if owner[m] >= len(queries)), 0)
    token_slot = [slot_of.get(t, spare) for t in range(padded)]
    lens_t = torch.tensor(row_lens, dtype=torch.int32)
    pages = torch.stack(
        [torch.from_numpy(table[o]) if o < len(queries) else torch.zeros(table.shape[1]).int() for o in owner]
    )
    return DecodeRows(
        "toy",
        width,
        lens_t,
        lens_t.clamp(min=1),
        pages.to(torch.int32),
        torch.tensor(owner, dtype=torch.int32),
        torch.tensor(row_token, dtype=torch.int32),
        torch.tensor(token_slot, dtype=torch.int32),
    )


def run_case(queries, lens, starts, *, padded=None, width=1, scatter=False, dtype=torch.float32):
    """Return (attention, reference) of one random ragged step."""
    total = sum(queries)
    padded = total if padded is None else padded
    table = np.zeros((len(queries), 16), dtype=np.int32)
    for request, start in enumerate(starts):
        table[request] = np.arange(start, start + 16)
    if scatter:
        table = np.random.default_rng(0).permutation(table.reshape(-1)).reshape(table.shape)
    cache = PagedCache(GEOMETRY, int(table.max()) + 1, PAGE, dtype, torch.device("cpu"))
    torch.manual_seed(0)
    cache.data.copy_(torch.randn(cache.data.shape))
    rows = make_rows(queries, lens, table, padded, width)
    boundaries = torch.tensor(np.concatenate(([0], np.cumsum(queries))), dtype=torch.int32)
    attention = DecodeAttention(
        rows, boundaries, queries=max(queries), max_kv_len=max(lens), group=3, cache=cache
    )
    query = torch.randn(padded, 6, 8).to(dtype)
    out = attention(0, query)
    keys, values = cache.layer(0)
    return out[:total].float(), attend_rows(query, keys, values, rows, PAGE)[:total], attention


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize(
    ("starts", "scatter", "groups"),
    [
        ([1, 17, 33, 49], False, 1),
        ([1, 33, 17, 65], False, 2),
        ([49, 33, 17, 1], False, 1),
        ([1, 17, 33, 49], True, 1),
    ],
)
def test_attention_equals_the_reference(starts, scatter, groups, width, dtype):
    """Ragged rows over runs in order, out of order, with holes, and over scattered pages."""
    out, expected, attention = run_case(
        [3, 1, 4, 2], [10, 7, 64, 33], starts, width=width, scatter=scatter, dtype=dtype
    )
    torch.testing.assert_close(out, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert len(attention._groups) == groups


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 40)), min_size=1, max_size=9),
    st.integers(0, 6),
    st.sampled_from([1, 2]),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_any_ragged_batch_equals_the_reference(shapes, padding, width, scatter, random):
    """Any lengths, any order of runs, padding tokens and paired rows."""
    queries = [count for count, _ in shapes]
    lens = [count + before for count, before in shapes]
    homes = random.sample(range(12), len(shapes))
    out, expected, _ = run_case(
        queries, lens, [1 + 16 * home for home in homes],
        padded=sum(queries) + padding, width=width, scatter=scatter,
    )  # fmt: skip
    torch.testing.assert_close(out, expected, rtol=2e-5, atol=2e-5)


def test_rows_decide_what_is_read():
    """Boundaries, lengths and pages come from the rows, not from host lengths (vllm #52783)."""
    rows = make_rows([2, 1], [3, 9], np.array([[5, 6, 7], [1, 2, 3]], dtype=np.int32), 5, 1)
    cells = locate(rows, torch.tensor([0, 2, 3], dtype=torch.int32), 3)
    assert cells.token.tolist() == [0, 1, 0, 2, 0, 0]
    assert cells.lens.tolist() == [[2, 3, 1], [9, 1, 1]]
    assert cells.cell.tolist() == [0, 1, 3, 0, 0]
    assert rows.block_table[cells.last_row].tolist() == [[5, 6, 7], [1, 2, 3]]


def test_runs_partition_any_starts():
    """Progressions cover every request once, in few views."""
    assert [run.members for run in arithmetic_runs((1, 9, 17))] == [(0, 1, 2)]
    assert [run.members for run in arithmetic_runs((1, 9, 25, 33))] == [(0, 1), (2, 3)]
    assert [(run.start, run.stride) for run in arithmetic_runs((7,))] == [(7, 0)]
    table = np.array([[3, 4, 9], [5, 6, 7]])
    assert consecutive(table, np.array([2, 3]))
    assert not consecutive(table, np.array([3, 3]))


@pytest.mark.parametrize("scatter", [False, True])
@pytest.mark.parametrize(("start", "length"), [(0, 1), (0, 9), (5, 6), (13, 1)])
def test_chunk_attention_is_causal(start, length, scatter):
    """A chunk attends to everything before it and to itself causally, on runs and scattered pages."""
    pages = np.array([3, 7, 1, 5] if scatter else [2, 3, 4, 5], dtype=np.int32)
    cache = PagedCache(GEOMETRY, 9, PAGE, torch.float32, torch.device("cpu"))
    torch.manual_seed(1)
    cache.data.copy_(torch.randn(cache.data.shape))
    query = torch.randn(length, 6, 8)
    out = ChunkAttention(pages, start, length, 3, cache)(0, query)
    table = np.repeat(pages[None], length, axis=0)
    rows = make_rows([1] * length, list(range(start + 1, start + length + 1)), table, length, 1)
    keys, values = cache.layer(0)
    torch.testing.assert_close(out, attend_rows(query, keys, values, rows, PAGE), rtol=2e-5, atol=2e-5)
