"""One launch writes minus infinity from each slot's length to the end of its row."""

import triton.language as tl

from adaverify_metadata._jit import device


# Width and stride change with every captured shape; neither may compile anew.
@device(do_not_specialize=["stride", "width"], do_not_specialize_on_alignment=["logits", "lens"])
def mask_logits_kernel(
    logits: tl.tensor, lens: tl.tensor, stride: tl.tensor, width: tl.tensor, COLUMNS: tl.constexpr
) -> None:
    """logits[s, c] = -inf for lens[s] <= c < width; nothing is read but the length.

    The row stride may exceed 2^31 / slots (512 rows of 2^20 columns are 2^31 bytes), hence 64-bit offsets.
    """
    slot = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    length = tl.load(lens + slot)
    outside = (column >= length) & (column < width)
    tl.store(logits + slot * stride + column, float("-inf"), mask=outside)
