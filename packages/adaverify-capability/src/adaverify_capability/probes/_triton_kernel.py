"""The probe's kernel; importing this module imports Triton."""

import triton
import triton.language as tl


@triton.jit
def prefix_sum_kernel(lengths, sums, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Write sums[i] = lengths[0] + ... + lengths[i] for i < count."""
    column = tl.arange(0, BLOCK)
    inside = column < count
    values = tl.load(lengths + column, mask=inside, other=0)
    tl.store(sums + column, tl.cumsum(values, 0), mask=inside)
