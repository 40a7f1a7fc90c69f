"""One program a row: gather what belongs to its request, and move it on by what the record accepts."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gather_recorded_kernel(
    row_slot,  # int32 [R], -1 for padding
    scores,  # float32 [P, K]
    cursor,  # int32 [S]
    kv_len,  # int32 [S]
    prefix,  # int32 [S]
    tables,  # int32 [S, W]
    control,  # int32 [2]
    row_scheduled,  # int32 [R]
    row_kv_lens,  # int32 [R]
    row_scores,  # float32 [R, K]
    row_slots,  # int64 [R]
    row_tables,  # int32 [R, W]
    DRAFTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_DRAFTS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    """Grid (R,)."""
    row = tl.program_id(0)
    named = tl.load(row_slot + row)
    real = named >= 0
    slot = tl.maximum(named, 0).to(tl.int64)
    at = tl.load(cursor + slot).to(tl.int64)
    count = tl.where(tl.load(control + 1) > 0, tl.load(prefix + slot), tl.load(control))
    tl.store(row_scheduled + row, tl.where(real, count, -1))
    tl.store(row_kv_lens + row, tl.where(real, tl.load(kv_len + slot), 0))
    tl.store(row_slots + row, named.to(tl.int64))
    k = tl.arange(0, BLOCK_DRAFTS)
    inside = k < DRAFTS
    score = tl.load(scores + at * DRAFTS + k, mask=inside, other=0.0)
    tl.store(row_scores + row.to(tl.int64) * DRAFTS + k, tl.where(real, score, 0.0), mask=inside)
    for first in tl.static_range(0, WIDTH, BLOCK_WIDTH):
        column = first + tl.arange(0, BLOCK_WIDTH)
        page = tl.load(tables + slot * WIDTH + column, mask=column < WIDTH, other=0)
        target = row_tables + row.to(tl.int64) * WIDTH + column
        tl.store(target, tl.where(real, page, 0), mask=column < WIDTH)


@triton.jit
def accept_recorded_kernel(
    row_slot,  # int32 [R], -1 for padding
    admitted,  # int32 [R]
    query_start_loc,  # int32 [R + 1]
    picked,  # int32 [T]
    row_scores,  # float32 [R, K]
    truth,  # int32 [P]
    cursor,  # int32 [S]
    begin,  # int32 [S]
    end,  # int32 [S]
    kv_len,  # int32 [S]
    out_accepted,  # int32 [R]
    out_admitted,  # int32 [R]
    out_tokens,  # int32 [R, K + 1]
    out_scores,  # float32 [R, K]
    START: tl.constexpr,
    BOUND: tl.constexpr,
    DRAFTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (R,), BLOCK > DRAFTS."""
    row = tl.program_id(0)
    wide = row.to(tl.int64)
    named = tl.load(row_slot + row)
    real = named >= 0
    slot = tl.maximum(named, 0).to(tl.int64)
    at = tl.load(cursor + slot)
    count = tl.load(admitted + row)
    accepted = tl.minimum(count, tl.load(truth + at))
    accepted = tl.where(real, accepted, 0)
    tl.store(out_accepted + row, accepted)
    tl.store(out_admitted + row, tl.where(real, count, 0))
    j = tl.arange(0, BLOCK)
    first = tl.load(query_start_loc + row)
    token = tl.load(picked + first + j, mask=real & (j <= accepted), other=-1)
    tl.store(out_tokens + wide * (DRAFTS + 1) + j, token, mask=j <= DRAFTS)
    score = tl.load(row_scores + wide * DRAFTS + j, mask=j < DRAFTS, other=0.0)
    tl.store(out_scores + wide * DRAFTS + j, score, mask=j < DRAFTS)
    last = tl.load(end + slot)
    moved = at + accepted + 1
    moved = tl.where(moved >= last, moved - last + tl.load(begin + slot), moved)
    length = tl.load(kv_len + slot) + accepted + 1
    length = tl.where(length > BOUND, START, length)
    tl.store(cursor + slot, moved, mask=real)
    tl.store(kv_len + slot, length, mask=real)
