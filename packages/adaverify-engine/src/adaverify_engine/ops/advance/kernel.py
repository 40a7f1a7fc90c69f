"""accepted = first j with picked[start + j] != drafts[j], at most admitted; accepted + 1 are appended."""

import triton
import triton.language as tl


@triton.jit
def advance_kernel(
    picked,  # int32 [T]
    gaps,  # float32 [T]
    admitted,  # int32 [R]
    query_start_loc,  # int32 [R + 1]
    row_slot,  # int32 [R], -1 for padding
    drafts,  # int32 [S, DRAFTS]
    scheduled,  # int32 [S]
    limit,  # int32 [S]
    history,  # int32 [S, L], row stride history_stride
    length,  # int32 [S]
    hits,  # float32 [S]
    trials,  # float32 [S]
    out_accepted,  # int32 [R]
    out_tokens,  # int32 [R, DRAFTS + 1]
    out_gaps,  # float32 [R, DRAFTS + 1]
    history_stride,
    MEMORY: tl.constexpr,
    DRAFTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Move one row's request on; grid (R,), BLOCK > DRAFTS."""
    row = tl.program_id(0)
    j = tl.arange(0, BLOCK)
    slot = tl.load(row_slot + row)
    real = slot >= 0
    slot = tl.maximum(slot, 0).to(tl.int64)
    start = tl.load(query_start_loc + row)
    size = tl.minimum(tl.load(admitted + row) + 1, tl.load(query_start_loc + row + 1) - start)
    size = tl.where(real, tl.maximum(size, 0), 0)
    proposed = tl.load(scheduled + slot, mask=real, other=0)
    at = tl.load(length + slot, mask=real, other=0)
    room = tl.load(limit + slot, mask=real, other=0) - at

    token = tl.load(picked + start + j, mask=j < size, other=-1)
    draft = tl.load(drafts + slot * DRAFTS + j, mask=real & (j < DRAFTS), other=-1)
    equal = (token == draft) & (j < size) & (j < proposed)
    agreeing = tl.min(tl.where(equal, BLOCK, j), 0)
    emitted = tl.maximum(tl.minimum(tl.minimum(agreeing + 1, size), room), 0)

    gap = tl.load(gaps + start + j, mask=j < emitted, other=0.0)
    out = row.to(tl.int64) * (DRAFTS + 1) + j
    tl.store(out_accepted + row, tl.maximum(emitted - 1, 0))
    tl.store(out_tokens + out, tl.where(j < emitted, token, -1), mask=j <= DRAFTS)
    tl.store(out_gaps + out, gap, mask=j <= DRAFTS)
    tl.store(history + slot * history_stride + at + j, token, mask=j < emitted)
    moved = emitted > 0
    hit = tl.load(hits + slot, mask=moved, other=0.0)
    trial = tl.load(trials + slot, mask=moved, other=0.0)
    tl.store(length + slot, at + emitted, mask=moved)
    tl.store(hits + slot, MEMORY * hit + tl.minimum(agreeing, emitted), mask=moved)
    tl.store(trials + slot, MEMORY * trial + tl.minimum(emitted, proposed), mask=moved)
