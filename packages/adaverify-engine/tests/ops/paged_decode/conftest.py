"""Rows of every strategy over a scattered, poisoned pool, for the tests of the paged decode attention.

Without a GPU the kernel runs in Triton's interpreter; the choice is made before the kernel module is
imported.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from adaverify_contracts import DecodeBatch, DecodeRows, Limits, ModelGeometry
from adaverify_engine.cache import PagedCache
from adaverify_engine.ops.paged_decode import PagedDecodeScratch, paged_decode
from adaverify_engine.ops.paged_decode.launch import PagedDecodeConfig
from adaverify_metadata import FlattenRowBuilder, PairedRowBuilder, UniformRowBuilder, VarlenRowBuilder

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BUILDERS = {
    "uniform": UniformRowBuilder,
    "flatten": FlattenRowBuilder,
    "paired": PairedRowBuilder,
    "varlen": VarlenRowBuilder,
}
# Relative to values near 1: float32 sums of a few hundred terms in another order; bfloat16 rounds weights and
# results to 8 bits.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


@dataclass
class Case:
    """One step: rows, the pool they read and the query tokens."""

    rows: DecodeRows
    batch: DecodeBatch
    limits: Limits
    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor

    @property
    def page(self):
        """Tokens in one page."""
        return self.limits.page_size

    def scratch(self, config):
        """Return scratch for this case's limits and heads."""
        _, heads, dim = self.query.shape
        return PagedDecodeScratch(len(self.query), heads, dim, self.limits.max_kv_len, DEVICE, config)

    def run(self, config, **changes):
        """Return the kernel's output from a poisoned buffer and poisoned scratch."""
        inputs = {"query": self.query, "keys": self.keys, "values": self.values, "rows": self.rows} | changes
        scratch = self.scratch(config)
        scratch.partial.fill_(float("nan"))
        scratch.extremes.fill_(float("nan"))
        out = torch.full_like(inputs["query"], float("nan"))
        paged_decode(
            *inputs.values(), out, page_size=self.page, max_kv_len=self.limits.max_kv_len, scratch=scratch
        )
        return out


def make_case(
    strategy, queries, lens, *, padding=0, heads=3, kv_heads=1, dim=16, page=16, longest=96,
    dtype=torch.float32, seed=0,
):  # fmt: skip
    """Make a step of these query and KV lengths; every pool token that no row may see is NaN."""
    limits = Limits(max(1, len(queries)), max([1, *queries]) - 1, longest, page)
    draw = torch.Generator().manual_seed(seed)
    width, requests = limits.table_width, len(queries)
    table = 1 + torch.randperm(requests * width, generator=draw).view(requests, width)
    batch = DecodeBatch(
        query_start_loc=torch.tensor([0, *queries]).cumsum(0).int().to(DEVICE),
        seq_lens=torch.tensor(lens).int().to(DEVICE),
        block_table=table.int().to(DEVICE),
        num_requests=sum(count > 0 for count in queries) if strategy == "uniform" else requests,
        num_tokens=sum(queries),
        padded_tokens=sum(queries) + padding,
        max_query_len=limits.max_query_len,
        uniform_query_len=max(queries) if strategy == "uniform" else None,
    )
    rows = make_builder(strategy, limits).build(batch)
    pool = torch.full((2, (1 + requests * width) * page, kv_heads, dim), float("nan"))
    for request, length in enumerate(lens):
        at = torch.arange(length)
        index = table[request, at // page] * page + at % page
        pool[:, index] = torch.randn(2, length, kv_heads, dim, generator=draw)
    query = torch.randn(sum(queries) + padding, heads, dim, generator=draw)
    keys, values = pool.to(DEVICE, dtype)
    return Case(rows, batch, limits, query.to(DEVICE, dtype), keys, values)


def make_builder(strategy, limits):
    """Return a builder of the strategy's rows in plain torch."""
    return BUILDERS[strategy](strategy, limits, DEVICE, backend="torch", max_rows=256)


def cached(case):
    """Return a paged cache of one layer that holds the case's pool, without its NaN, and its geometry."""
    pages = len(case.keys) // case.page
    _, kv_heads, dim = case.keys.shape
    geometry = ModelGeometry("toy", 1, 8, case.query.shape[1], kv_heads, dim, 11, 4096, ())
    cache = PagedCache(geometry, pages, case.page, case.query.dtype, case.query.device)
    cache.data.copy_(torch.stack((case.keys, case.values))[None].nan_to_num())
    return cache, geometry


@pytest.fixture(scope="session")
def decode():
    """The helpers of this file, for tests that cannot import a sibling under importlib mode."""
    return SimpleNamespace(
        device=DEVICE,
        strategies=tuple(BUILDERS),
        tolerance=TOLERANCE,
        builder=make_builder,
        cached=cached,
        case=make_case,
        config=PagedDecodeConfig,
    )
