"""Gathers of head vectors against the permuted copies that they stand for."""

from __future__ import annotations

import pytest
import torch

from adaverify_engine.attention.cells import QueryCells
from adaverify_engine.attention.vectors import HeadVectors

REQUESTS, QUERIES, KV_HEADS, GROUP, DIM = 3, 4, 2, 3, 8
LENGTHS = (4, 1, 2)
HEADS = KV_HEADS * GROUP


def cells():
    starts = [0, 4, 5]
    token = [starts[r] + min(q, LENGTHS[r] - 1) for r in range(REQUESTS) for q in range(QUERIES)]
    cell = [r * QUERIES + q for r in range(REQUESTS) for q in range(LENGTHS[r])]
    lens = torch.ones((REQUESTS, QUERIES), dtype=torch.int64)
    return QueryCells(QUERIES, torch.tensor(token), lens, torch.tensor(cell), torch.zeros(REQUESTS).long())


def queries(layout):
    """Seven tokens' query heads: alone, beside the key heads of a projection, or off the grid of vectors."""
    if layout == "alone":
        return torch.randn(7, HEADS, DIM)
    if layout == "beside keys":
        return torch.randn(7, HEADS + KV_HEADS, DIM)[:, :HEADS]
    return torch.randn(7, HEADS, DIM + 3)[:, :, :DIM]


@pytest.mark.parametrize("layout", ["alone", "beside keys", "off the grid"])
def test_queries_reach_the_grid_whatever_their_layout(layout):
    """Every cell of every head; kept indices serve a second layer, and another layout gets its own."""
    vectors = HeadVectors(cells(), REQUESTS, GROUP)
    for query in (queries(layout), queries(layout), queries("alone")):
        grid = query[cells().token].view(REQUESTS, QUERIES, KV_HEADS, GROUP, DIM).permute(0, 2, 3, 1, 4)
        assert torch.equal(vectors.gather(query).view(grid.shape), grid)


@pytest.mark.parametrize("transposed", [False, True])
def test_answers_come_back_to_their_tokens(transposed):
    """Attention hands its output over in either order of heads and places."""
    out = torch.randn(REQUESTS, KV_HEADS, GROUP * QUERIES, DIM)
    if transposed:
        out = out.transpose(1, 2).contiguous().transpose(1, 2)
    split = out.view(REQUESTS, KV_HEADS, GROUP, QUERIES, DIM).permute(0, 3, 1, 2, 4)
    expected = split.reshape(REQUESTS * QUERIES, HEADS, DIM)[cells().cell]
    assert torch.equal(HeadVectors(cells(), REQUESTS, GROUP).scatter(out), expected)
