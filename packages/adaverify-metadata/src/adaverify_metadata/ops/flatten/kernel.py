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
    REQUESTS: tl.constexpr,
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

    Every program reads all boundaries at once and keeps the one request that holds its row: two memory round
    trips before the first page id, where a binary search would take one for each halving.
    """
    program = tl.program_id(0)
    request = tl.arange(0, REQUESTS)
    there = request < requests
    start = tl.load(query_start_loc + request, mask=there, other=0)
    end = tl.load(query_start_loc + request + 1, mask=there, other=0)
    seq_len = tl.load(seq_lens + request, mask=there, other=0)

    # Rows are scalars: a block of rows would make the compiler move each of these between register layouts
    # (34 barriers instead of 8 in the code generated for compute capability 9.0).
    for step in tl.static_range(ROWS):
        row = program * ROWS + step
        inside = row < tokens
        mine = (start <= row) & (row < end) & inside
        owner = tl.sum(tl.where(mine, request + 1, 0), 0) - 1
        # Row t sees ahead + t positions.
        ahead = tl.sum(tl.where(mine, seq_len - end + 1, 0), 0)
        real = owner >= 0
        length = local_length(tl.where(real, ahead + row, 0), RATIO, CP_SIZE, CP_RANK, CP_INTERLEAVE)

        tl.store(row_lens + row, length, mask=inside)
        tl.store(schedule_lens + row, tl.maximum(length, 1), mask=inside)
        tl.store(row_request + row, tl.where(real, owner, requests + row), mask=inside)
        tl.store(row_token + row, tl.where(real, row, -1), mask=inside)
        tl.store(token_slot + row, row, mask=inside)

        reach = length
        if WHOLE_REQUEST:
            last = tl.sum(tl.where(mine, seq_len, 0), 0)
            reach = local_length(last, RATIO, CP_SIZE, CP_RANK, CP_INTERLEAVE)
        pages = pages_of(reach, PAGE, WIDTH)
        copy_pages(table, row_table, table_stride, tl.maximum(owner, 0), row, pages, ROW_STRIDE, COLUMNS)
