"""One launch a layer: rotation of all queries, quantisation of those of the indexer."""

import triton
import triton.language as tl


@triton.jit
def shape_queries_kernel(
    wide,  # [T, heads x KEY + index_heads x INDEX], dense
    gates,  # [T, index_heads], row stride gates_stride
    position,  # int32 [T]
    cosine,  # float32 [L, ROPE / 2]
    sine,  # float32 [L, ROPE / 2]
    codes,  # float8 e4m3 [T, index_heads, INDEX]
    weights,  # float32 [T, index_heads]
    gates_stride,
    factor,
    HEADS: tl.constexpr,
    KEY: tl.constexpr,
    INDEX_HEADS: tl.constexpr,
    INDEX: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK_PLAIN: tl.constexpr,
    GROUP: tl.constexpr,
    E4M3_MAX: tl.constexpr,
    AMAX_FLOOR: tl.constexpr,
):
    """GROUP heads of one token; grid (T, blocks of index heads + blocks of attention heads)."""
    HALF: tl.constexpr = ROPE // 2
    PLAIN: tl.constexpr = INDEX - ROPE
    INDEX_BLOCKS: tl.constexpr = (INDEX_HEADS + GROUP - 1) // GROUP
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    at = tl.load(position + token).to(tl.int64)
    half = tl.arange(0, HALF)
    cos = tl.load(cosine + at * HALF + half)[None, :]
    sin = tl.load(sine + at * HALF + half)[None, :]
    row = wide + token * (HEADS * KEY + INDEX_HEADS * INDEX)
    if block < INDEX_BLOCKS:
        head = block * GROUP + tl.arange(0, GROUP)
        there = head < INDEX_HEADS
        query = row + HEADS * KEY + head[:, None] * INDEX
        plain = tl.arange(0, BLOCK_PLAIN)
        wanted = there[:, None] & (plain < PLAIN)[None, :]
        turned = there[:, None] & (half >= 0)[None, :]
        q = tl.load(query + plain[None, :], mask=wanted, other=0.0).to(tl.float32)
        left = tl.load(query + PLAIN + half[None, :], mask=turned, other=0.0).to(tl.float32)
        right = tl.load(query + PLAIN + HALF + half[None, :], mask=turned, other=0.0).to(tl.float32)
        first = left * cos - right * sin
        second = left * sin + right * cos
        most = tl.maximum(tl.max(tl.abs(first), 1), tl.max(tl.abs(second), 1))
        most = tl.maximum(most, tl.max(tl.abs(q), 1))
        scale = tl.maximum(most, AMAX_FLOOR) / E4M3_MAX
        kind = codes.dtype.element_ty
        code = codes + (token * INDEX_HEADS + head[:, None]) * INDEX
        tl.store(code + plain[None, :], (q / scale[:, None]).to(kind), mask=wanted)
        tl.store(code + PLAIN + half[None, :], (first / scale[:, None]).to(kind), mask=turned)
        tl.store(code + PLAIN + HALF + half[None, :], (second / scale[:, None]).to(kind), mask=turned)
        gate = tl.load(gates + token * gates_stride + head, mask=there, other=0.0).to(tl.float32)
        tl.store(weights + token * INDEX_HEADS + head, gate * scale * factor, mask=there)
    else:
        # Names of its own: a name that both branches bind must have one shape.
        line = (block - INDEX_BLOCKS) * GROUP + tl.arange(0, GROUP)
        served = (line < HEADS)[:, None] & (half >= 0)[None, :]
        tail = row + line[:, None] * KEY + (KEY - ROPE) + half[None, :]
        one = tl.load(tail, mask=served, other=0.0).to(tl.float32)
        other = tl.load(tail + HALF, mask=served, other=0.0).to(tl.float32)
        tl.store(tail, (one * cos - other * sin).to(wide.dtype.element_ty), mask=served)
        tl.store(tail + HALF, (one * sin + other * cos).to(wide.dtype.element_ty), mask=served)
