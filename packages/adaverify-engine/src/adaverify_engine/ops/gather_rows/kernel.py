"""One program a row copies what belongs to its request; padding rows get inert values."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gather_rows_kernel(
    row_slot,  # int32 [R]
    history,  # int32 [S, L]
    length,  # int32 [S]
    drafts,  # int32 [S, K]
    scores,  # float32 [S, K]
    scheduled,  # int32 [S]
    tables,  # int32 [S, W]
    certain,  # int64 [R]
    row_drafts,  # int64 [R, K]
    row_scheduled,  # int32 [R]
    kv_lens,  # int32 [R]
    row_scores,  # float32 [R, K]
    slots,  # int64 [R]
    row_tables,  # int32 [R, W]
    COLUMNS: tl.constexpr,
    DRAFTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_DRAFTS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    DRAFTING: tl.constexpr,
):
    """Grid (R,)."""
    row = tl.program_id(0)
    named = tl.load(row_slot + row)
    real = named >= 0
    slot = tl.maximum(named, 0).to(tl.int64)
    last = tl.maximum(tl.load(length + slot) - 1, 0)
    token = tl.load(history + slot * COLUMNS + last)
    tl.store(certain + row, tl.where(real, token, 0).to(tl.int64))
    tl.store(kv_lens + row, tl.where(real, last, 0))
    tl.store(slots + row, named.to(tl.int64))
    if DRAFTING:
        count = tl.load(scheduled + slot)
    else:
        count = last * 0
    tl.store(row_scheduled + row, tl.where(real, count, -1))
    if DRAFTS > 0:
        k = tl.arange(0, BLOCK_DRAFTS)
        inside = k < DRAFTS
        wanted = inside & DRAFTING
        proposed = tl.load(drafts + slot * DRAFTS + k, mask=wanted, other=-1)
        score = tl.load(scores + slot * DRAFTS + k, mask=wanted, other=0.0)
        at = row.to(tl.int64) * DRAFTS + k
        tl.store(row_drafts + at, tl.where(real, proposed, -1).to(tl.int64), mask=inside)
        tl.store(row_scores + at, tl.where(real, score, 0.0), mask=inside)
    for first in tl.static_range(0, WIDTH, BLOCK_WIDTH):
        column = first + tl.arange(0, BLOCK_WIDTH)
        page = tl.load(tables + slot * WIDTH + column, mask=column < WIDTH, other=0)
        target = row_tables + row.to(tl.int64) * WIDTH + column
        tl.store(target, tl.where(real, page, 0), mask=column < WIDTH)
