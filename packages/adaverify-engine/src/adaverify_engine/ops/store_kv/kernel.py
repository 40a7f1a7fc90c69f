"""One launch a layer: keys and values of all tokens of a step."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["pool"])
def store_kv_kernel(
    key,  # [T, HEADS, DIM], strides of token and head
    value,  # alike
    keys,  # [pool tokens, HEADS, DIM], dense
    values,  # alike
    slots,  # int64 [T]
    pool,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """Store one token; grid (T,). Padding tokens all go to the null page, whatever wins there."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    head = tl.arange(0, BLOCK_HEADS)[:, None]
    lane = tl.arange(0, BLOCK_DIM)[None, :]
    # Others' memory begins past the pool: what has no place in it is not stored.
    here = (head < HEADS) & (lane < DIM) & (slot >= 0) & (slot < pool)
    to = slot * (HEADS * DIM) + head * DIM + lane
    row = tl.load(key + token * key_stride + head * key_head_stride + lane, mask=here)
    tl.store(keys + to, row, mask=here)
    row = tl.load(value + token * value_stride + head * value_head_stride + lane, mask=here)
    tl.store(values + to, row, mask=here)
