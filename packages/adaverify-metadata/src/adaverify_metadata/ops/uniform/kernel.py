"""One launch builds the rows of the uniform strategy."""

import triton.language as tl

from adaverify_metadata._jit import device
from adaverify_metadata.ops.device import copy_pages, local_length, pages_of


@device(
    do_not_specialize=["requests", "tokens", "width"],
    do_not_specialize_on_alignment=["query_start_loc", "seq_lens"],
)
def uniform_kernel(
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
    width: tl.tensor,
    REQUESTS: tl.constexpr,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROW_STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    RATIO: tl.constexpr,
    CP_SIZE: tl.constexpr,
    CP_RANK: tl.constexpr,
    CP_INTERLEAVE: tl.constexpr,
) -> None:
    """Slot j of row r: len = seq_lens[r] - (width - 1 - j) where j >= width - q_r, else 0."""
    program = tl.program_id(0)
    total = tl.load(query_start_loc + requests)
    for step in tl.static_range(ROWS):
        row = program * ROWS + step
        inside = row < requests
        start = tl.load(query_start_loc + row, mask=inside, other=0)
        end = tl.load(query_start_loc + row + 1, mask=inside, other=0)
        seq_len = tl.load(seq_lens + row, mask=inside, other=0)

        j = tl.arange(0, SLOTS)
        front = width - (end - start)
        held = inside & (j < width)
        real = held & (j >= front)
        token = start + j - front
        seen = tl.where(real, seq_len - (width - 1 - j), 0)
        length = local_length(seen, RATIO, CP_SIZE, CP_RANK, CP_INTERLEAVE)
        slot = row * width + j
        tl.store(row_lens + slot, length, mask=held)
        tl.store(schedule_lens + slot, tl.maximum(length, 1), mask=held)
        tl.store(row_token + slot, tl.where(real, token, -1), mask=held)
        tl.store(token_slot + token, slot, mask=real)
        tl.store(row_request + row, tl.where(end > start, row, requests + row), mask=inside)

        # The last slot sees the whole request; a padding row has no last slot.
        reach = tl.where(inside & (end > start), seq_len, 0)
        pages = pages_of(local_length(reach, RATIO, CP_SIZE, CP_RANK, CP_INTERLEAVE), PAGE, WIDTH)
        copy_pages(table, row_table, table_stride, row, row, pages, ROW_STRIDE, COLUMNS)

    if (program + 1) * ROWS * SLOTS > total:
        # Padding tokens point at the first padding slot: the front of the first request that is short.
        request = tl.arange(0, REQUESTS)
        there = request < requests
        all_start = tl.load(query_start_loc + request, mask=there, other=0)
        all_end = tl.load(query_start_loc + request + 1, mask=there, other=0)
        short = tl.min(tl.where(there & (all_end - all_start < width), request, requests), 0)
        spare = tl.where(short < requests, short * width, 0)
        padding = program * ROWS * SLOTS + tl.arange(0, ROWS * SLOTS)
        tl.store(token_slot + padding, padding * 0 + spare, mask=(padding >= total) & (padding < tokens))
