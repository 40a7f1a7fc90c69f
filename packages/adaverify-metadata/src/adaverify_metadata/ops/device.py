"""Device code that the row kernels share."""

import triton.language as tl

from adaverify_metadata._jit import device


@device()
def local_length(
    length: tl.tensor,
    RATIO: tl.constexpr,
    CP_SIZE: tl.constexpr,
    CP_RANK: tl.constexpr,
    CP_INTERLEAVE: tl.constexpr,
) -> tl.tensor:
    """Return max(length, 0) // RATIO, then the part of it on this context-parallel rank."""
    length = tl.maximum(length, 0) // RATIO
    if CP_SIZE > 1:
        rest = length % (CP_SIZE * CP_INTERLEAVE) - CP_RANK * CP_INTERLEAVE
        whole = length // (CP_SIZE * CP_INTERLEAVE) * CP_INTERLEAVE
        length = whole + tl.minimum(tl.maximum(rest, 0), CP_INTERLEAVE)
    return length


@device()
def pages_of(length: tl.tensor, PAGE: tl.constexpr, WIDTH: tl.constexpr) -> tl.tensor:
    """Return min(ceil(length / PAGE), WIDTH); adding PAGE - 1 first could overflow near 2^31."""
    return tl.minimum(length // PAGE + (length % PAGE != 0).to(tl.int32), WIDTH)


@device()
def copy_pages(
    table: tl.tensor,
    row_table: tl.tensor,
    table_stride: tl.tensor,
    request: tl.tensor,
    row: tl.tensor,
    pages: tl.tensor,
    ROW_STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """row_table[row, :pages] = max(table[request, :pages], 0), with 64-bit offsets.

    Whole groups of four columns go first: their mask is constant over each group, so that loads and stores
    stay 16 bytes wide. A mask on ``pages`` itself would split them into four strided accesses.
    """
    source = table + request.to(tl.int64) * table_stride
    target = row_table + row.to(tl.int64) * ROW_STRIDE
    fours = pages // 4 * 4
    # Not a range: the interpreter converts a range's bound in a way that numpy deprecates, with a warning a
    # row.
    first = 0
    while first < fours:
        column = first + tl.arange(0, COLUMNS)
        page = tl.load(source + column, mask=column < fours, other=0)
        tl.store(target + column, tl.maximum(page, 0), mask=column < fours)
        first += COLUMNS
    column = fours + tl.arange(0, 4)
    page = tl.load(source + column, mask=column < pages, other=0)
    tl.store(target + column, tl.maximum(page, 0), mask=column < pages)
