"""One launch writes what vLLM's ragged path takes a chain of calls for: lengths, tables, query lengths."""

import triton.language as tl


def rows_kernel(
    query_start_loc,  # int32 [requests + 1]
    seq_lens,  # int32 [requests]
    table,  # int32 [requests, WIDTH], rows table_stride apart
    row_lens,  # int32 [tokens]
    row_table,  # int32 [tokens, WIDTH], rows row_stride apart
    row_queries,  # int32 [tokens]
    table_stride,
    row_stride,
    requests,
    REQUESTS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Row t of request r: len = seq_lens[r] - (query_start_loc[r + 1] - 1 - t); grid (tokens,).

    A padding row gets length 0 and page 0. The first request that ends after t owns the row, so requests of
    zero length own none.
    """
    t = tl.program_id(0)
    r = tl.arange(0, REQUESTS)
    ends = tl.load(query_start_loc + 1 + r, mask=r < requests, other=2147483647)
    request = tl.sum((ends <= t).to(tl.int32), 0)
    real = request < requests
    end = tl.load(query_start_loc + 1 + request, mask=real, other=0)
    seen = tl.load(seq_lens + request, mask=real, other=0)
    tl.store(row_lens + t, tl.where(real, seen - end + 1 + t, 0))
    tl.store(row_queries + t, 1)
    source = table + request.to(tl.int64) * table_stride
    target = row_table + t.to(tl.int64) * row_stride
    first = 0
    while first < WIDTH:
        column = first + tl.arange(0, COLUMNS)
        inside = column < WIDTH
        page = tl.load(source + column, mask=inside & real, other=0)
        tl.store(target + column, page, mask=inside & (real | (column == 0)))
        first += COLUMNS
