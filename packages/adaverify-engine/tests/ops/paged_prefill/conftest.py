"""Prompt chunks over a scattered, poisoned pool, for the tests of the paged prefill attention.

Without a GPU the kernel runs in Triton's interpreter; the choice is made before the kernel module is
imported.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from adaverify_contracts import ModelGeometry, ceil_div
from adaverify_engine.attention import ChunkAttention
from adaverify_engine.cache import PagedCache
from adaverify_engine.ops.paged_prefill import (
    Piece,
    paged_prefill,
    paged_prefill_reference,
    plan_tiles,
    shape_of,
)

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Relative to values near 1: float32 sums of a few hundred terms in another order; bfloat16 rounds weights and
# results to 8 bits.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


@dataclass
class Case:
    """The chunks of one step, the pool they read and their query tokens."""

    pieces: list[Piece]
    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    page: int

    @property
    def group(self):
        """Query heads a KV head."""
        return self.query.shape[1] // self.keys.shape[1]

    def run(self, pieces=None, query=None):
        """Return the kernel's output from a poisoned buffer, of this case's chunks or of others."""
        query = self.query if query is None else query
        size = shape_of(self.group, query.shape[2], query.dtype).tokens
        tiles = plan_tiles(pieces or self.pieces, size, self.page, DEVICE)
        out = torch.full(query.shape, float("nan"), dtype=query.dtype, device=DEVICE)
        paged_prefill(query, self.keys, self.values, tiles, out, page_size=self.page)
        return out

    def reference(self):
        """Return what float32 torch makes of it, token by token."""
        return paged_prefill_reference(self.query, self.keys, self.values, self.pieces, self.page)

    def cache(self):
        """Return a paged cache of one layer that holds the pool, its NaN replaced, and its geometry."""
        _, kv_heads, dim = self.keys.shape
        geometry = ModelGeometry("toy", 1, 8, self.query.shape[1], kv_heads, dim, 11, 4096, ())
        cache = PagedCache(geometry, len(self.keys) // self.page, self.page, self.query.dtype, DEVICE)
        cache.data.copy_(torch.stack((self.keys, self.values))[None].nan_to_num())
        return cache, geometry

    def one_by_one(self):
        """Return what ``ChunkAttention`` gives for each chunk."""
        cache, _ = self.cache()
        parts, at = [], 0
        for piece in self.pieces:
            parts.append(ChunkAttention(*piece, self.group, cache)(0, self.query[at : at + piece[2]]))
            at += piece[2]
        return torch.cat(parts)


def make_case(places, *, heads=3, kv_heads=1, dim=16, page=16, dtype=torch.float32, seed=0):
    """Make chunks of these (start, length); every pool token past a chunk's end is NaN, page 0 too.

    The query is the first half of a wider tensor, as a model cuts it from one product.
    """
    draw = torch.Generator().manual_seed(seed)
    width = 1 + ceil_div(max(start + length for start, length in places), page)
    pages = 1 + np.random.default_rng(seed).permutation(len(places) * width).astype(np.int32)
    table = pages.reshape(len(places), width)
    pool = torch.full((2, (1 + table.size) * page, kv_heads, dim), float("nan"))
    pieces = []
    for row, (start, length) in zip(table, places, strict=True):
        at = torch.arange(start + length)
        index = torch.from_numpy(row).long()[at // page] * page + at % page
        pool[:, index] = torch.randn(2, len(at), kv_heads, dim, generator=draw)
        # Behind its own pages a row names the null page, as the engine's table does.
        row[ceil_div(start + length, page) :] = 0
        pieces.append((row, start, length))
    tokens = sum(length for _, length in places)
    query = torch.randn(tokens, 2 * heads, dim, generator=draw).to(DEVICE, dtype)[:, :heads]
    keys, values = pool.to(DEVICE, dtype)
    return Case(pieces, query, keys, values, page)


@pytest.fixture(scope="session")
def prefill():
    """The helpers of this file, for tests that cannot import a sibling under importlib mode."""
    return SimpleNamespace(device=DEVICE, tolerance=TOLERANCE, case=make_case)
