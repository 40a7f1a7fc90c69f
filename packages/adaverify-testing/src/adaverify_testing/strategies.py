"""Hypothesis strategies for limits and decode batches; batches are made on the CPU."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from adaverify_contracts import DecodeBatch, Limits, ceil_div

# In the columns of a block table that no real row needs: no page id, so a builder that copies more than a row
# needs, or reads a padding request's pages, hands it on and is found out.
UNUSED_PAGE = -1515870811


@st.composite
def limits(
    draw: st.DrawFn,
    *,
    max_requests: int = 8,
    max_draft_tokens: int = 7,
    max_model_len: int = 300,
    page_sizes: tuple[int, ...] = (1, 2, 16, 64),
    compress_ratios: tuple[int, ...] = (1,),
    context_parallel_sizes: tuple[int, ...] = (1,),
) -> Limits:
    """Draw small limits; 1 request, K = 0 and sequences of one token are among them.

    Args:
        draw: given by hypothesis.
        max_requests: most requests.
        max_draft_tokens: largest K.
        max_model_len: longest sequence.
        page_sizes: page sizes to draw from.
        compress_ratios: KV compression ratios to draw from.
        context_parallel_sizes: context-parallel group sizes to draw from; the rank is drawn too.
    """
    size = draw(st.sampled_from(context_parallel_sizes))
    return Limits(
        max_requests=draw(st.integers(1, max_requests)),
        draft_tokens=draw(st.integers(0, max_draft_tokens)),
        max_model_len=draw(st.integers(1, max_model_len)),
        page_size=draw(st.sampled_from(page_sizes)),
        compress_ratio=draw(st.sampled_from(compress_ratios)),
        context_parallel_size=size,
        context_parallel_rank=draw(st.integers(0, size - 1)),
        context_parallel_interleave=draw(st.sampled_from((1, 2, 4))) if size > 1 else 1,
    )


@st.composite
def decode_batches(
    draw: st.DrawFn,
    limits: Limits,
    *,
    uniform: bool | None = None,
    min_query_len: int = 0,
    unused_page: int = UNUSED_PAGE,
) -> DecodeBatch:
    """Draw a decode batch that fits ``limits``: ragged, uniform, empty, full, with and without padding.

    Args:
        draw: given by hypothesis.
        limits: what the builder under test was made for.
        uniform: True draws equal lengths with ``uniform_query_len`` set, False leaves it None, None both.
        min_query_len: shortest length of a real request; 0 makes requests without tokens occur.
        unused_page: value in the block-table columns that nothing may read.

    A real request's ``seq_lens`` is at least its query length, at most ``limits.max_kv_len``, and often one
    of the two. Pages in use are distinct over the batch. Padding requests have length 0 and no page.
    """
    padded_requests = draw(st.integers(1, limits.max_requests))
    real = draw(st.sampled_from(sorted({0, 1, padded_requests // 2, padded_requests - 1, padded_requests})))
    query = _query_lens(draw, limits, real, uniform, min_query_len)
    equal = len(set(query)) == 1 and query[0] > 0
    uniform_len = query[0] if equal and (uniform or (uniform is None and draw(st.booleans()))) else None
    kv = [_kv_len(draw, limits, length) for length in query]
    total = sum(query)
    padded_tokens = draw(
        st.sampled_from(sorted({total, min(total + 1, limits.max_tokens), limits.max_tokens}))
    )
    padding = [0] * (padded_requests - real)
    starts = torch.zeros(padded_requests + 1, dtype=torch.int32)
    starts[1:] = torch.tensor(query + padding, dtype=torch.int32).cumsum(0)
    return DecodeBatch(
        query_start_loc=starts,
        seq_lens=torch.tensor(kv + padding, dtype=torch.int32),
        block_table=_block_table(draw, limits, kv, padded_requests, unused_page),
        num_requests=real,
        num_tokens=total,
        padded_tokens=padded_tokens,
        max_query_len=limits.max_query_len,
        uniform_query_len=uniform_len,
    )


def _query_lens(
    draw: st.DrawFn, limits: Limits, real: int, uniform: bool | None, min_query_len: int
) -> list[int]:
    # A sequence is never shorter than the query tokens it contains.
    longest = min(limits.max_query_len, limits.max_kv_len)
    if uniform or (uniform is None and draw(st.booleans())):
        return [draw(st.integers(max(1, min_query_len), longest))] * real
    return draw(st.lists(st.integers(min_query_len, longest), min_size=real, max_size=real))


def _kv_len(draw: st.DrawFn, limits: Limits, query_len: int) -> int:
    edges = {query_len, limits.max_kv_len, min(limits.max_kv_len, max(query_len, limits.page_size))}
    return draw(st.sampled_from(sorted(edges)) | st.integers(query_len, limits.max_kv_len))


def _block_table(
    draw: st.DrawFn, limits: Limits, kv: list[int], padded_requests: int, unused_page: int
) -> torch.Tensor:
    needed = [ceil_div(length // limits.compress_ratio, limits.page_size) for length in kv]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    pages = torch.randperm(sum(needed) + 1, generator=generator, dtype=torch.int32)
    # A row stride wider than the table is allowed, so some tables have one.
    stride = limits.table_width + draw(st.sampled_from((0, 3)))
    table = torch.full((padded_requests, stride), unused_page, dtype=torch.int32)[:, : limits.table_width]
    start = 0
    for row, count in enumerate(needed):
        table[row, :count] = pages[start : start + count]
        start += count
    return table
