"""One launch for each of the small operations between two products of a layer."""

import triton
import triton.language as tl


@triton.jit
def turn_kernel(
    mixed,  # [T, all heads, 2 HALF], a token's heads dense
    positions,  # int64 [T]
    turns,  # float32 [positions, 2 HALF]: cosine, sine of each pair
    mixed_stride,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """Turn the first HEADS heads of one token where they lie; grid (T,)."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, BLOCK_HEADS)[:, None]
    pair = tl.arange(0, BLOCK_HALF)[None, :]
    angle = turns + tl.load(positions + token) * (2 * HALF) + 2 * pair
    cosine = tl.load(angle, mask=pair < HALF, other=0.0)
    sine = tl.load(angle + 1, mask=pair < HALF, other=0.0)
    here = (head < HEADS) & (pair < HALF)
    first = mixed + token * mixed_stride + head * (2 * HALF) + 2 * pair
    real = tl.load(first, mask=here, other=0.0).to(tl.float32)
    imaginary = tl.load(first + 1, mask=here, other=0.0).to(tl.float32)
    kind = mixed.dtype.element_ty
    tl.store(first, (real * cosine - imaginary * sine).to(kind), mask=here)
    tl.store(first + 1, (real * sine + imaginary * cosine).to(kind), mask=here)


@triton.jit
def join_kernel(
    hidden,  # [T, HIDDEN]
    added,  # [T, HIDDEN]
    weight,  # [HIDDEN]
    joined,  # [T, HIDDEN]
    normed,  # [T, HIDDEN]
    eps,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add one token's rows and norm the sum; grid (T,)."""
    at = tl.program_id(0).to(tl.int64) * HIDDEN + tl.arange(0, BLOCK)
    lane = tl.arange(0, BLOCK)
    inside = lane < HIDDEN
    kind = joined.dtype.element_ty
    total = tl.load(hidden + at, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(added + at, mask=inside, other=0.0).to(tl.float32)
    # The next layer adds to the rounded sum, so the norm is of that, too.
    kept = total.to(kind)
    tl.store(joined + at, kept, mask=inside)
    wide = kept.to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / HIDDEN + eps)
    gain = tl.load(weight + lane, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + at, (wide * factor * gain).to(kind), mask=inside)


@triton.jit
def gate_kernel(
    gate_up,  # [T, 2 INNER]
    gated,  # [T, INNER]
    INNER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Gate one block of one token; grid (T, INNER / BLOCK)."""
    token = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source = gate_up + token * (2 * INNER) + lane
    gate = tl.load(source, mask=lane < INNER, other=0.0).to(tl.float32)
    up = tl.load(source + INNER, mask=lane < INNER, other=0.0).to(tl.float32)
    result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(gated + token * INNER + lane, result.to(gated.dtype.element_ty), mask=lane < INNER)
