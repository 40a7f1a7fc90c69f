"""One launch a block: residual + added + sum of weighted rows, and the norm of it."""

import triton
import triton.language as tl


@triton.jit
def join_residual_kernel(
    residual,  # [T, HIDDEN]
    added,  # [T, HIDDEN]
    rows,  # [N, HIDDEN]; read with ACTIVE > 0 only
    places,  # int32 [T, ACTIVE]
    weights,  # float32 [T, ACTIVE]
    joined,  # [T, HIDDEN]
    norm,  # [T, HIDDEN]
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    ACTIVE: tl.constexpr,
    EPSILON: tl.constexpr,
):
    """Join one token; grid (T,)."""
    token = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    inside = lane < HIDDEN
    at = token * HIDDEN + lane
    total = tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(added + at, mask=inside, other=0.0).to(tl.float32)
    for j in tl.static_range(ACTIVE):
        place = tl.load(places + token * ACTIVE + j).to(tl.int64)
        weight = tl.load(weights + token * ACTIVE + j)
        row = tl.load(rows + place * HIDDEN + lane, mask=inside & (place >= 0), other=0.0)
        total += row.to(tl.float32) * weight
    kept = total.to(joined.dtype.element_ty)
    tl.store(joined + at, kept, mask=inside)
    wide = kept.to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / HIDDEN + EPSILON)
    tl.store(norm + at, (wide * factor).to(norm.dtype.element_ty), mask=inside)
