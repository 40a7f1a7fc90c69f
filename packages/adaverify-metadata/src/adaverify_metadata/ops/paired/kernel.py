"""One launch builds the rows of the paired strategy."""

import triton.language as tl

from adaverify_metadata._jit import device
from adaverify_metadata.ops.device import copy_pages, local_length, pages_of


@device(
    do_not_specialize=["requests", "tokens", "rows"],
    do_not_specialize_on_alignment=["query_start_loc", "seq_lens"],
)
def paired_kernel(
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
    rows: tl.tensor,
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
) -> None:
    """Request r takes ceil(q_r / 2) rows; slot s holds token start_r + s - F_r, F_r its first taken slot.

    Rows scatter the slots of their tokens; each real token has exactly one row, so no two programs write one
    entry. Padding tokens are written by the program whose range they fall in.
    """
    program = tl.program_id(0)
    request = tl.arange(0, REQUESTS)
    there = request < requests
    start = tl.load(query_start_loc + request, mask=there, other=0)
    end = tl.load(query_start_loc + request + 1, mask=there, other=0)
    seq_len = tl.load(seq_lens + request, mask=there, other=0)
    total = tl.load(query_start_loc + requests)
    odd = (end - start) % 2
    taken = (end - start + 1) // 2
    until = tl.cumsum(taken, 0)
    before = until - taken

    # Rows are scalars, as in the flatten kernel: no value moves between register layouts.
    for step in tl.static_range(ROWS):
        row = program * ROWS + step
        inside = row < rows
        mine = (before <= row) & (row < until) & inside
        owner = tl.sum(tl.where(mine, request + 1, 0), 0) - 1
        front = tl.sum(tl.where(mine, 2 * before + odd, 0), 0)
        first = tl.sum(tl.where(mine, start, 0), 0)
        # Token t sees ahead + t positions.
        ahead = tl.sum(tl.where(mine, seq_len - end + 1, 0), 0)

        last = 0
        for j in tl.static_range(2):
            slot = row * 2 + j
            token = first + slot - front
            real = (owner >= 0) & (slot >= front)
            length = local_length(tl.where(real, ahead + token, 0), RATIO, CP_SIZE, CP_RANK, CP_INTERLEAVE)
            tl.store(row_lens + slot, length, mask=inside)
            tl.store(schedule_lens + slot, tl.maximum(length, 1), mask=inside)
            tl.store(row_token + slot, tl.where(real, token, -1), mask=inside)
            tl.store(token_slot + token, slot, mask=real)
            last = length
        tl.store(row_request + row, tl.where(owner >= 0, owner, requests + row), mask=inside)
        pages = pages_of(last, PAGE, WIDTH)
        copy_pages(table, row_table, table_stride, tl.maximum(owner, 0), row, pages, ROW_STRIDE, COLUMNS)

    if (program + 1) * ROWS * 2 > total:
        # Slot 0 is empty when the last row is taken and a token is missing: then every request is odd.
        spare = tl.where(tl.sum(taken, 0) < rows, 2 * rows - 1, 0)
        padding = program * ROWS * 2 + tl.arange(0, ROWS * 2)
        tl.store(token_slot + padding, padding * 0 + spare, mask=(padding >= total) & (padding < tokens))
