"""Batches, an independent oracle and comparisons for the row tests.

Without a GPU the kernels run in Triton's interpreter. The choice is made before any kernel is first used;
importing a kernel module reads nothing (adaverify_metadata._jit).
"""

from __future__ import annotations

import os
from dataclasses import fields
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from adaverify_contracts import DecodeBatch, DecodeRows, Limits
from adaverify_metadata import FlattenRowBuilder, PairedRowBuilder, UniformRowBuilder, VarlenRowBuilder

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BUILDERS = {
    "uniform": UniformRowBuilder,
    "flatten": FlattenRowBuilder,
    "paired": PairedRowBuilder,
    "varlen": VarlenRowBuilder,
}
POISON = -77777


def make_batch(seq_lens, query_lens, padded_tokens, limits, *, uniform=None, table=None, host=None):
    """Make a batch on the test device; the default table gives every request its own page ids."""
    requests, width = len(seq_lens), limits.table_width
    if table is None:
        table = torch.arange(1, requests * width + 1).view(requests, width)
    host = query_lens if host is None else host
    start = torch.tensor([0, *query_lens]).cumsum(0)
    return DecodeBatch(
        query_start_loc=start.int().to(DEVICE),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device=DEVICE),
        block_table=table.int().to(DEVICE),
        num_requests=sum(length > 0 for length in host) if uniform else requests,
        num_tokens=sum(host),
        padded_tokens=padded_tokens,
        max_query_len=limits.max_query_len,
        uniform_query_len=uniform,
    )


def seen_entries(length, limits):
    """Count the compressed KV entries of one row on this rank, by the definition."""
    size, rank = limits.context_parallel_size, limits.context_parallel_rank
    interleave = limits.context_parallel_interleave
    entries = max(0, length) // limits.compress_ratio
    return sum((p // interleave) % size == rank for p in range(entries))


def expected_slots(strategy, query_lens, padded_tokens, width):
    """List the rows as (request or None, tokens with -1 for empty slots), written without the reference."""
    token, rows = 0, []
    for request, length in enumerate(query_lens):
        tokens = list(range(token, token + length))
        token += length
        if strategy == "uniform":
            rows.append((request if length else None, [-1] * (width - length) + tokens))
        else:
            tokens = [-1] * (-length % width) + tokens
            rows += [(request, tokens[i : i + width]) for i in range(0, len(tokens), width)]
    if strategy != "uniform":
        half = (padded_tokens + len(query_lens)) // 2
        count = padded_tokens if width == 1 else min(padded_tokens, half)
        assert len(rows) <= count
        rows += [(None, [-1] * width)] * (count - len(rows))
    return rows


def check_against_oracle(rows: DecodeRows, strategy, batch, limits):
    """Compare every field with plain Python over the device's boundaries."""
    start, seq_lens = batch.query_start_loc.tolist(), batch.seq_lens.tolist()
    query_lens = [b - a for a, b in pairwise(start)]
    table = batch.block_table.tolist()
    want = expected_slots(strategy, query_lens, batch.padded_tokens, rows.tokens_per_row)
    assert rows.rows == len(want)
    for m, (request, tokens) in enumerate(want):
        ends = [start[request + 1] if request is not None else 0] * len(tokens)
        lens = [
            seen_entries(seq_lens[request] - (end - 1 - t), limits) if t >= 0 else 0
            for t, end in zip(tokens, ends, strict=True)
        ]
        assert rows.row_lens[m].tolist() == lens
        assert rows.schedule_lens[m].tolist() == [max(1, length) for length in lens]
        assert rows.row_token[m].tolist() == tokens
        assert int(rows.row_request[m]) == (batch.requests + m if request is None else request)
        reach = lens[-1]
        if strategy == "varlen" and request is not None:
            reach = seen_entries(seq_lens[request], limits)
        pages = min(-(-reach // limits.page_size), limits.table_width)
        if pages:
            assert rows.block_table[m, :pages].tolist() == [max(0, page) for page in table[request][:pages]]
    slots = [t for _, tokens in want for t in tokens]
    token_slot = rows.token_slot.tolist()
    assert len(token_slot) == batch.padded_tokens
    for t in range(start[-1]):
        assert slots[token_slot[t]] == t
    for t in range(start[-1], batch.padded_tokens):
        assert slots[token_slot[t]] == -1 if -1 in slots else token_slot[t] == 0


def assert_same_rows(left: DecodeRows, right: DecodeRows):
    """Compare two sets of rows bit for bit, table columns that nobody wrote included."""
    for field in fields(DecodeRows):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if isinstance(a, torch.Tensor):
            assert (a.dtype, a.shape) == (b.dtype, b.shape), field.name
            assert torch.equal(a, b), (field.name, a, b)
        else:
            assert a == b, field.name


def poison(builder):
    """Overwrite every static buffer, as a fault elsewhere would."""
    for tensor in builder.buffers.values():
        tensor.fill_(POISON)


def draw_limits(draw, st):
    """Draw limits with compression and context parallelism among them."""
    size = draw(st.sampled_from([1, 1, 2, 3]))
    return Limits(
        max_requests=draw(st.integers(1, 5)),
        draft_tokens=draw(st.integers(0, 4)),
        max_model_len=draw(st.integers(1, 40)),
        page_size=draw(st.sampled_from([1, 2, 4, 16, 64])),
        compress_ratio=draw(st.sampled_from([1, 1, 2, 4])),
        context_parallel_size=size,
        context_parallel_rank=draw(st.integers(0, size - 1)),
        context_parallel_interleave=draw(st.sampled_from([1, 2, 5])),
    )


def draw_batch(draw, st, limits, *, uniform=False, requests=None, padded_tokens=None):
    """Draw a batch of any lengths; zero-length requests and lengths below the query length included."""
    if requests is None:
        requests = draw(st.integers(0, limits.max_requests))
    longest = limits.max_query_len
    width = draw(st.integers(1, longest)) if uniform else None
    choice = st.sampled_from([0, width]) if uniform else st.integers(0, longest)
    query_lens = []
    for _ in range(requests):
        room = limits.max_tokens if padded_tokens is None else padded_tokens - sum(query_lens)
        length = draw(choice)
        query_lens.append(length if length <= room else 0)
    if padded_tokens is None:
        padded_tokens = draw(st.integers(sum(query_lens), limits.max_tokens))
    seq_lens = [draw(st.integers(0, limits.max_kv_len)) if length else 0 for length in query_lens]
    size = requests * limits.table_width
    pages = draw(st.lists(st.integers(-1, 2**31 - 1), min_size=size, max_size=size))
    table = torch.tensor(pages, dtype=torch.int64).view(requests, limits.table_width)
    return make_batch(seq_lens, query_lens, padded_tokens, limits, uniform=width, table=table)


@pytest.fixture(scope="session")
def kit():
    """The helpers of this file, for tests that cannot import a sibling under importlib mode."""
    return SimpleNamespace(
        device=DEVICE,
        builders=BUILDERS,
        poison_value=POISON,
        batch=make_batch,
        check=check_against_oracle,
        same=assert_same_rows,
        poison=poison,
        draw_limits=draw_limits,
        draw_batch=draw_batch,
    )
