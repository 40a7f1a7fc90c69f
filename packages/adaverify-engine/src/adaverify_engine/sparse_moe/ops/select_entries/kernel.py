"""One launch: the exact threshold of each slot by halving twice at a time, then the entries above it.

A score's bits, its sign made an offset, order as the score does. The threshold is the largest key that at
least SELECTED keys reach; it is found two bits at a time, three counts in one reduction.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["width"])
def select_entries_kernel(
    scores,  # float32 [slots, width], row stride scores_stride
    lens,  # int32 [slots]
    picked,  # int32 [slots, SELECTED]
    width,
    scores_stride,
    SELECTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Select for one slot; grid (slots,). A slot that sees at most SELECTED entries writes nothing."""
    slot = tl.program_id(0).to(tl.int64)
    length = tl.minimum(tl.load(lens + slot), width)
    if length <= SELECTED:
        return
    column = tl.arange(0, BLOCK)
    score = tl.load(scores + slot * scores_stride + column, mask=column < length, other=float("-inf"))
    bits = score.to(tl.uint32, bitcast=True)
    # Unsigned order of floats: negative ones count down. Columns past the length lie below -inf.
    key = tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)
    key = tl.where(column < length, key, 0)
    threshold = tl.zeros([1], tl.uint32)
    for step in tl.static_range(16):
        unit = 1 << (30 - 2 * step)
        reached = (key >= threshold + unit).to(tl.int64)
        reached += (key >= threshold + 2 * unit).to(tl.int64) << 20
        reached += (key >= threshold + 3 * unit).to(tl.int64) << 40
        count = tl.sum(reached, 0)
        digit = ((count & 0xFFFFF) >= SELECTED).to(tl.uint32)
        digit += (((count >> 20) & 0xFFFFF) >= SELECTED).to(tl.uint32)
        digit += ((count >> 40) >= SELECTED).to(tl.uint32)
        threshold += digit * unit
    above = key > threshold
    equal = key == threshold
    needed = SELECTED - tl.sum(above.to(tl.int32), 0)
    # Of equal scores the lower columns; both running counts in one scan.
    running = tl.cumsum((above.to(tl.int32) << 16) + equal.to(tl.int32), 0)
    ties = running & 0xFFFF
    place = (running >> 16) + tl.minimum(ties, needed) - 1
    kept = above | (equal & (ties <= needed))
    tl.store(picked + slot * SELECTED + place, column, mask=kept)
