"""Place p of a history of n tokens matches m tokens if tokens[p - m .. p) = tokens[n - m .. n), m <= 16.

The best place has the largest m, then the largest p; draft k is tokens[p + k mod (n - p)]. A second scan
counts for each k the places of the same m that agree with the drafts up to k; the scores are made of that.
"""

import triton
import triton.language as tl

# Match length above, place below: one maximum finds the longest match and the newest among equals.
PLACE_BITS = tl.constexpr(26)
PLACE_MASK = tl.constexpr((1 << 26) - 1)


@triton.jit
def _matched(tokens, place, size, LONGEST: tl.constexpr):
    """Match length of every place, 0 outside 1 .. size - 1."""
    inside = place < size
    alive = inside & (place >= 1)
    length = place * 0
    for i in tl.static_range(LONGEST):
        last = tl.load(tokens + size - 1 - i, mask=size > i, other=-1)
        # Not masked by what matched so far, so that all loads are in flight at once.
        token = tl.load(tokens + place - 1 - i, mask=inside & (place > i), other=-2)
        alive = alive & (token == last)
        length += alive.to(tl.int32)
    return length


@triton.jit
def lookup_kernel(
    history,  # int32 [S, L], row stride history_stride
    length,  # int32 [S]
    limit,  # int32 [S]
    row_slot,  # int32 [R], -1 for padding
    hits,  # float32 [S]
    trials,  # float32 [S]
    drafts,  # int32 [S, DRAFTS]
    scores,  # float32 [S, DRAFTS]
    scheduled,  # int32 [S]
    history_stride,
    DRAFTS: tl.constexpr,
    BLOCK_DRAFTS: tl.constexpr,
    BLOCK: tl.constexpr,
    LONGEST: tl.constexpr,
    OCCURRENCES: tl.constexpr,
):
    """Propose for one row's request; grid (R,), BLOCK_DRAFTS >= DRAFTS."""
    slot = tl.load(row_slot + tl.program_id(0)).to(tl.int64)
    if slot >= 0:
        tokens = history + slot * history_stride
        size = tl.load(length + slot)
        count = tl.minimum(DRAFTS, tl.maximum(tl.load(limit + slot) - size - 1, 0))
        tl.store(scheduled + slot, count)
        lane = tl.arange(0, BLOCK)
        k = tl.arange(0, BLOCK_DRAFTS)

        best = size * 0
        first = size * 0
        while first < size:
            place = first + lane
            found = _matched(tokens, place, size, LONGEST)
            best = tl.maximum(best, tl.max(tl.where(found > 0, (found << PLACE_BITS) | place, 0), 0))
            first += BLOCK
        longest = best >> PLACE_BITS
        matched = longest > 0
        source = tl.where(matched, best & PLACE_MASK, size - 1)
        period = tl.maximum(size - source, 1)
        draft = tl.load(tokens + source + k % period, mask=(k < count) & (size > 0), other=0)

        agreeing = tl.zeros([BLOCK_DRAFTS], tl.int32)
        before = tl.zeros([BLOCK_DRAFTS], tl.int32)
        # Where nothing matched there is nothing to count.
        first = tl.where(matched & (count > 0), 0, size)
        while first < size:
            place = first + lane
            alive = _matched(tokens, place, size, LONGEST) == longest
            depth = alive.to(tl.int32)
            wrap = tl.maximum(size - place, 1)
            for step in tl.static_range(DRAFTS):
                wanted = tl.load(tokens + source + step % period, mask=step < count, other=-1)
                token = tl.load(tokens + place + step % wrap, mask=place < size, other=-2)
                alive = alive & (token == wanted)
                depth += alive.to(tl.int32)
            before += tl.sum((depth[:, None] > k[None, :]).to(tl.int32), 0)
            agreeing += tl.sum((depth[:, None] > k[None, :] + 1).to(tl.int32), 0)
            first += BLOCK

        hit = tl.load(hits + slot)
        base = 0.45 * tl.log((hit + 1.0) / (tl.load(trials + slot) - hit + 1.0))
        support = tl.maximum(tl.minimum(agreeing, OCCURRENCES), 1).to(tl.float32)
        share = agreeing.to(tl.float32) / tl.maximum(before, 1).to(tl.float32)
        odds = (share * support + 0.5) / ((1.0 - share) * support + 0.5)
        reach = tl.maximum(longest + k, 1).to(tl.float32)
        score = base + 1.1 * tl.log(odds) + 0.5 * tl.log(support) + 0.8 * tl.log(reach)
        score = tl.where(matched, score, -4.0 - k.to(tl.float32) / 4.0)

        out = slot * DRAFTS + k
        tl.store(drafts + out, tl.where(k < count, draft, -1), mask=k < DRAFTS)
        tl.store(scores + out, tl.where(k < count, score, 0.0), mask=k < DRAFTS)
