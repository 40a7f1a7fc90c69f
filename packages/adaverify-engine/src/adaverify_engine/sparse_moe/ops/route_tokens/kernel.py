"""Two launches a layer: choose experts and count, then lay rows out by expert.

The place of a row among those of its expert is the order in which programs came to the counter, so it may
differ from run to run. Nothing that is read depends on it: rows of a grouped product do not meet.
"""

import triton
import triton.language as tl


@triton.jit
def route_kernel(
    logits,  # [T, EXPERTS], row stride logits_stride
    token_request,  # int32 [T], -1 for padding
    experts,  # int32 [T, ACTIVE]
    weights,  # float32 [T, ACTIVE]
    ranks,  # int32 [T, ACTIVE]
    counts,  # int32 [LOCAL], zeros before
    logits_stride,
    EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
    ACTIVE: tl.constexpr,
    BLOCK_ACTIVE: tl.constexpr,
    LOCAL: tl.constexpr,
):
    """Route one token; grid (T,)."""
    token = tl.program_id(0).to(tl.int64)
    real = tl.load(token_request + token) >= 0
    expert = tl.arange(0, BLOCK)
    j = tl.arange(0, BLOCK_ACTIVE)
    left = tl.load(logits + token * logits_stride + expert, mask=expert < EXPERTS, other=float("-inf"))
    left = left.to(tl.float32)
    best = tl.full([BLOCK_ACTIVE], float("-inf"), tl.float32)
    chosen = tl.zeros([BLOCK_ACTIVE], tl.int32)
    for step in tl.static_range(ACTIVE):
        value = tl.max(left, 0)
        winner = tl.min(tl.where(left == value, expert, BLOCK), 0)
        best = tl.where(j == step, value, best)
        chosen = tl.where(j == step, winner, chosen)
        left = tl.where(expert == winner, float("-inf"), left)
    share = tl.exp(best - tl.max(best, 0))
    share = share / tl.sum(share, 0)
    wanted = j < ACTIVE
    here = wanted & (chosen < LOCAL) & real
    rank = tl.atomic_add(counts + tl.where(here, chosen, 0), 1, mask=here, sem="relaxed")
    out = token * ACTIVE + j
    tl.store(experts + out, tl.where(here, chosen, -1), mask=wanted)
    tl.store(weights + out, share, mask=wanted)
    tl.store(ranks + out, rank, mask=here)


@triton.jit
def dispatch_kernel(
    hidden,  # [T, HIDDEN], dense
    experts,  # int32 [T, ACTIVE]
    ranks,  # int32 [T, ACTIVE]
    counts,  # int32 [LOCAL]
    rows,  # [T x ACTIVE, HIDDEN]
    ends,  # int32 [LOCAL]
    places,  # int32 [T, ACTIVE]
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    ACTIVE: tl.constexpr,
    LOCAL: tl.constexpr,
    BLOCK_LOCAL: tl.constexpr,
):
    """Copy one token's row for one of its experts; grid (T x ACTIVE,)."""
    pair = tl.program_id(0)
    number = tl.arange(0, BLOCK_LOCAL)
    count = tl.load(counts + number, mask=number < LOCAL, other=0)
    if pair == 0:
        tl.store(ends + number, tl.cumsum(count, 0), mask=number < LOCAL)
    expert = tl.load(experts + pair)
    if expert < 0:
        tl.store(places + pair, -1)
        return
    place = tl.sum(tl.where(number < expert, count, 0), 0) + tl.load(ranks + pair)
    tl.store(places + pair, place)
    source = hidden + (pair // ACTIVE).to(tl.int64) * HIDDEN
    target = rows + place.to(tl.int64) * HIDDEN
    for begin in tl.static_range(0, HIDDEN, BLOCK):
        lane = begin + tl.arange(0, BLOCK)
        tl.store(target + lane, tl.load(source + lane, mask=lane < HIDDEN), mask=lane < HIDDEN)
