"""One launch a layer: the gates of the shared expert and of all routed rows."""

import triton
import triton.language as tl


@triton.jit
def _gate(source, target, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    for begin in tl.static_range(0, WIDTH, BLOCK):
        lane = begin + tl.arange(0, BLOCK)
        gate = tl.load(source + lane, mask=lane < WIDTH, other=0.0).to(tl.float32)
        up = tl.load(source + WIDTH + lane, mask=lane < WIDTH, other=0.0).to(tl.float32)
        result = gate / (1.0 + tl.exp(-gate)) * up
        tl.store(target + lane, result.to(target.dtype.element_ty), mask=lane < WIDTH)


@triton.jit(do_not_specialize=["tokens"])
def gated_kernel(
    shared,  # [T, 2 SHARED], row stride shared_stride
    routed,  # [N, 2 ROUTED], dense
    ends,  # int32 [LOCAL]; rows at or past the last are left out
    shared_out,  # [T, SHARED]
    routed_out,  # [N, ROUTED]
    tokens,
    shared_stride,
    SHARED: tl.constexpr,
    ROUTED: tl.constexpr,
    LOCAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row; grid (T + N,), the shared expert's rows first."""
    row = tl.program_id(0).to(tl.int64)
    if row < tokens:
        _gate(shared + row * shared_stride, shared_out + row * SHARED, SHARED, BLOCK)
    else:
        place = row - tokens
        if place < tl.load(ends + LOCAL - 1):
            _gate(routed + place * (2 * ROUTED), routed_out + place * ROUTED, ROUTED, BLOCK)
