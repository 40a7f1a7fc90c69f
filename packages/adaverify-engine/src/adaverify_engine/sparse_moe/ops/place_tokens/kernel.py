"""One launch a step: position, visible entries and cache cell of every query token."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tokens"])
def place_tokens_kernel(
    token_request,  # int32 [T], -1 for padding
    token_offset,  # int32 [T]
    kv_lens,  # int32 [R]
    table,  # int32 [R, W], row stride table_stride
    ids,  # int32 [T]
    position,  # int32 [T]
    visible,  # int32 [T]
    cell,  # int64 [T]
    tokens,
    table_stride,
    RATIO: tl.constexpr,
    PAGE: tl.constexpr,
    VOCABULARY: tl.constexpr,
    POSITION_STEP: tl.constexpr,
    REQUEST_STEP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Place BLOCK tokens; grid (tokens / BLOCK,)."""
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = token < tokens
    request = tl.load(token_request + token, mask=inside, other=-1)
    real = request >= 0
    offset = tl.load(token_offset + token, mask=real, other=0)
    at = tl.load(kv_lens + request, mask=real, other=0) + offset
    row = table + request.to(tl.int64) * table_stride
    first = tl.load(row, mask=real, other=0).to(tl.int64)
    # 64 bits: a page id times the step passes 2^31 from 20505 pages on.
    number = (at.to(tl.int64) * POSITION_STEP + first * REQUEST_STEP) % VOCABULARY
    entry = at // RATIO
    completes = real & ((at + 1) % RATIO == 0)
    page = tl.load(row + entry // PAGE, mask=completes, other=0).to(tl.int64)
    tl.store(ids + token, tl.where(real, number, 0).to(tl.int32), mask=inside)
    tl.store(position + token, tl.where(real, at, 0), mask=inside)
    tl.store(visible + token, tl.where(real, (at + 1) // RATIO, 0), mask=inside)
    tl.store(cell + token, tl.where(completes, page * PAGE + entry % PAGE, -1), mask=inside)
