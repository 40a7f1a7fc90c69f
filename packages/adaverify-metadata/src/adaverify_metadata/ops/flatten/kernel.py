"""One launch builds the rows of the flatten and varlen strategies."""

import triton.language as tl

from adaverify_metadata._jit import device
from adaverify_metadata.ops.device import copy_pages, local_length, pages_of


@device(
    do_not_specialize=["requests", "tokens"],
    do_not_specialize_on_alignment=["query_start_loc", "seq_lens"],
)
def flatten_kernel(
    query_start_loc: tl.tensor,
    seq_lens: tl.tensor,
    table: tl.tensor,
    table_stride: tl.tensor,
    row_lens: tl.tensor,
    schedule_lens: tl.tensor,
    row_table: tl.tensor,
    row_request: tl.tensor,
    row_token: tl.tensor,
    token_slot: tl.tensor,
    requests: tl.tensor,
    tokens: tl.tensor,
    QUERY: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROW_STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    RATIO: tl.constexpr,
    CP_SIZE: tl.constexpr,
    CP_RANK: tl.constexpr,
    CP_INTERLEAVE: tl.constexpr,
    WHOLE_REQUEST: tl.constexpr,
) -> None:
    """Row t of request r: len = seq_lens[r] - (query_start_loc[r + 1] - 1 - t).

    There is a place for each of the longest query's tokens of every request, so that a place knows its
    request without a search: one memory round trip before the first page id. Place p = r x QUERY + j is token
    j of request r where there is one; the others, p - query_start_loc[r + 1] of them so far, take the padding
    rows in turn.
    """
    program = tl.program_id(0)
    total = tl.load(query_start_loc + requests)
    for step in tl.static_range(ROWS):
        place = program * ROWS + step
        request = place // QUERY
        there = request < requests
        start = tl.load(query_start_loc + request, mask=there, other=0)
        end = tl.load(query_start_loc + request + 1, mask=there, other=0)
        seq_len = tl.load(seq_lens + request, mask=there, other=0)
        token = start + place % QUERY
        real = there & (token < end)
        row = tl.where(real, token, total + place - tl.where(there, end, total))
        inside = row < tokens
        seen = tl.where(real, seq_len - end + 1 + row, 0)
        length = local_length(seen, RATIO, CP_SIZE, CP_RANK, CP_INTERLEAVE)

        tl.store(row_lens + row, length, mask=inside)
        tl.store(schedule_lens + row, tl.maximum(length, 1), mask=inside)
        tl.store(row_request + row, tl.where(real, request, requests + row), mask=inside)
        tl.store(row_token + row, tl.where(real, row, -1), mask=inside)
        tl.store(token_slot + row, row, mask=inside)

        reach = length
        if WHOLE_REQUEST:
            last = tl.where(real, seq_len, 0)
            reach = local_length(last, RATIO, CP_SIZE, CP_RANK, CP_INTERLEAVE)
        pages = tl.where(inside, pages_of(reach, PAGE, WIDTH), 0)
        copy_pages(table, row_table, table_stride, request, row, pages, ROW_STRIDE, COLUMNS)
