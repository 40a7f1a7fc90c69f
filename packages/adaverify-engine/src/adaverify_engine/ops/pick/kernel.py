"""Best token, its lead, and the token drawn by inverse CDF, in two launches over [T, V] logits.

Launch 1 gives each of C chunks of a row a program: best b_c, its smallest id, second best, and where the
row's request is sampled the mass ``S_c = sum_v exp((x_v - b_c) / temperature)``. Launch 2 gives each row a
program: best and gap from the chunks, the total ``sum_c S_c exp((b_c - b) / temperature)``, the chunk in
which ``noise x total`` falls, and the token within it. A nucleus (top_p < 1) is the set of weights
``w_v = exp((x_v - b) / temperature)`` down to an edge that bisection over the bits of w finds.
"""

import triton
import triton.language as tl

ONE_BITS = tl.constexpr(0x3F800000)
NO_TOKEN = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _slot(t, token_request, row_slot):
    request = tl.load(token_request + t)
    return tl.load(row_slot + request, mask=request >= 0, other=-1)


@triton.jit
def _weight(x, top, heat):
    # Colder than this every law is one-hot in float32, and dividing by a subnormal would overflow.
    heat = tl.maximum(heat, 1e-30)
    # Infinite logits are left out of the difference: inf - inf is NaN.
    below = (x < top) & (x > float("-inf"))
    weight = tl.exp((tl.where(below, x, 0.0) - tl.where(below, top, 0.0)) / heat)
    return tl.where(below, weight, (x == top).to(tl.float32))


@triton.jit
def _chunk(row, c, vocabulary, CHUNK: tl.constexpr):
    v = c * CHUNK + tl.arange(0, CHUNK)
    return v, tl.load(row + v, mask=v < vocabulary, other=float("-inf"))


@triton.jit
def _draw(
    row, peak, shares, total, coin, top, heat, vocabulary, BLOCK_CHUNKS: tl.constexpr, CHUNK: tl.constexpr
):
    """Smallest v whose cumulated weight exceeds coin x total, over the whole law."""
    c = tl.arange(0, BLOCK_CHUNKS)
    target = coin * total
    above = (tl.cumsum(shares, 0) > target) & (shares > 0)
    chosen = tl.min(tl.where(above, c, BLOCK_CHUNKS), 0)
    # Rounding may leave no chunk, or no token in it, above the target: the last one of positive weight.
    chosen = tl.minimum(chosen, tl.max(tl.where(shares > 0, c, 0), 0))
    before = tl.sum(tl.where(c < chosen, shares, 0.0), 0)
    own = tl.max(tl.where(c == chosen, peak, float("-inf")), 0)
    v, x = _chunk(row, chosen, vocabulary, CHUNK)
    weight = _weight(x, own, heat).to(tl.float64) * _weight(own, top, heat).to(tl.float64)
    reached = (before + tl.cumsum(weight, 0) > target) & (weight > 0)
    token = tl.min(tl.where(reached, v, NO_TOKEN), 0)
    return tl.minimum(token, tl.max(tl.where(weight > 0, v, 0), 0))


@triton.jit
def _split(row, top, heat, bits, vocabulary, CHUNKS: tl.constexpr, CHUNK: tl.constexpr):
    """Mass of the weights above ``bits``, the least of them, and the greatest of the others (as bits)."""
    mass = tl.zeros([CHUNK], tl.float64)
    above = tl.full([CHUNK], ONE_BITS, tl.int32)
    below = tl.zeros([CHUNK], tl.int32)
    for c in range(CHUNKS):
        _, x = _chunk(row, c, vocabulary, CHUNK)
        weight = _weight(x, top, heat)
        code = weight.to(tl.int32, bitcast=True)
        over = code > bits
        mass += tl.where(over, weight, 0.0).to(tl.float64)
        above = tl.minimum(above, tl.where(over, code, ONE_BITS))
        below = tl.maximum(below, tl.where(over, 0, code))
    return tl.sum(mass, 0), tl.min(above, 0), tl.max(below, 0)


@triton.jit
def _draw_nucleus(
    row, total, coin, nucleus, top, heat, vocabulary, CHUNKS: tl.constexpr, CHUNK: tl.constexpr
):
    """Smallest v whose cumulated weight in the nucleus exceeds coin x the mass of the nucleus.

    Bisection keeps mass(w > low) >= top_p x total > mass(w > high), with high and low + 1 moved to weights
    that occur, until they are one: the weight at the edge. Of the tokens that have it the smallest ids are
    kept, as many as the mass needs.
    """
    share = nucleus.to(tl.float64)
    aim = share * total
    # V weights of at most (1 - top_p) x total / (2 V) cannot hold the mass that the nucleus leaves out.
    low = ((1.0 - share) * total / (2.0 * vocabulary)).to(tl.float32).to(tl.int32, bitcast=True)
    high = low * 0 + ONE_BITS
    high_mass = total * 0.0
    while high - low > 1:
        mass, above, below = _split(row, top, heat, low + (high - low) // 2, vocabulary, CHUNKS, CHUNK)
        enough = mass >= aim
        low = tl.where(enough, above - 1, low)
        high = tl.where(enough, high, below)
        high_mass = tl.where(enough, high_mass, mass)

    edge = high.to(tl.float32, bitcast=True).to(tl.float64)
    needed = ((aim - high_mass) / edge).to(tl.int32)
    needed += (high_mass + needed.to(tl.float64) * edge < aim).to(tl.int32)
    target = coin * (high_mass + needed.to(tl.float64) * edge)
    running = total * 0.0
    seen = low * 0
    token = low * 0 + NO_TOKEN
    last = low * 0
    for c in range(CHUNKS):
        v, x = _chunk(row, c, vocabulary, CHUNK)
        weight = _weight(x, top, heat)
        code = weight.to(tl.int32, bitcast=True)
        tied = (code == high).to(tl.int32)
        kept = (code > high) | ((tied > 0) & (seen + tl.cumsum(tied, 0) <= needed))
        mass = tl.where(kept, weight, 0.0).to(tl.float64)
        reached = kept & (running + tl.cumsum(mass, 0) > target)
        token = tl.minimum(token, tl.min(tl.where(reached, v, NO_TOKEN), 0))
        last = tl.maximum(last, tl.max(tl.where(kept, v, 0), 0))
        running += tl.sum(mass, 0)
        seen += tl.sum(tied, 0)
    return tl.minimum(token, last)


@triton.jit
def chunk_kernel(
    logits,  # float32 [T, V], row stride logits_stride
    token_request,  # int32 [T], -1 for padding
    row_slot,  # int32 [R], -1 for padding
    temperature,  # float32 [S]
    chunk_best,  # float32 [T, CHUNKS]
    chunk_second,  # float32 [T, CHUNKS]
    chunk_token,  # int32 [T, CHUNKS]
    chunk_mass,  # float64 [T, CHUNKS], written where the request is sampled
    out_finite,  # int32 [1], set to 1 here and to 0 by the other launch
    logits_stride,
    vocabulary,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Best, second, id and mass of one chunk of one row; grid (T, CHUNKS)."""
    t = tl.program_id(0)
    c = tl.program_id(1)
    if t + c == 0:
        tl.store(out_finite, 1)
    slot = _slot(t, token_request, row_slot)
    if slot >= 0:
        v, x = _chunk(logits + t.to(tl.int64) * logits_stride, c, vocabulary, CHUNK)
        # A maximum skips NaN, so it is looked for.
        broken = tl.max((x != x).to(tl.int32), 0)
        x = tl.where(x != x, float("-inf"), x)
        best = tl.max(x, 0)
        token = tl.min(tl.where(x == best, v, NO_TOKEN), 0)
        second = tl.max(tl.where(v == token, float("-inf"), x), 0)
        at = t.to(tl.int64) * CHUNKS + c
        tl.store(chunk_best + at, tl.where(broken > 0, float("nan"), best))
        tl.store(chunk_second + at, second)
        tl.store(chunk_token + at, token)
        heat = tl.load(temperature + slot)
        if heat > 0:
            tl.store(chunk_mass + at, tl.sum(_weight(x, best, heat).to(tl.float64), 0))


@triton.jit
def row_kernel(
    logits,  # float32 [T, V], row stride logits_stride
    token_request,  # int32 [T]
    token_offset,  # int32 [T]
    row_slot,  # int32 [R]
    length,  # int32 [S]
    temperature,  # float32 [S]
    top_p,  # float32 [S]
    noise,  # float64 [S, L, 2]
    chunk_best,  # float32 [T, CHUNKS]
    chunk_second,  # float32 [T, CHUNKS]
    chunk_token,  # int32 [T, CHUNKS]
    chunk_mass,  # float64 [T, CHUNKS]
    out_token,  # int32 [T]
    out_gap,  # float32 [T]
    out_finite,  # int32 [1]
    logits_stride,
    positions,  # L
    vocabulary,
    CHUNKS: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Decide one row from its chunks; grid (T,)."""
    t = tl.program_id(0)
    slot = _slot(t, token_request, row_slot)
    if slot < 0:
        tl.store(out_token + t, -1)
        tl.store(out_gap + t, 0.0)
    else:
        c = tl.arange(0, BLOCK_CHUNKS)
        there = c < CHUNKS
        at = t.to(tl.int64) * CHUNKS + c
        peak = tl.load(chunk_best + at, mask=there, other=float("-inf"))
        ids = tl.load(chunk_token + at, mask=there, other=NO_TOKEN)
        second = tl.load(chunk_second + at, mask=there, other=float("-inf"))
        broken = tl.max((peak != peak).to(tl.int32), 0)
        peak = tl.where(peak != peak, float("-inf"), peak)
        best = tl.max(peak, 0)
        token = tl.min(tl.where(peak == best, ids, NO_TOKEN), 0)
        behind = tl.max(tl.where(ids == token, second, peak), 0)
        finite = (broken == 0) & (tl.abs(best) < float("inf"))
        # inf - inf, written so that it is not computed.
        unknown = (broken > 0) | ((best == behind) & (finite == 0))
        token = tl.where(broken > 0, 0, token)
        gap = tl.where(unknown, float("nan"), best - tl.where(unknown, 0.0, behind))
        if finite:
            heat = tl.load(temperature + slot)
            if heat > 0:
                row = logits + t.to(tl.int64) * logits_stride
                place = tl.minimum(tl.load(length + slot) + tl.load(token_offset + t), positions - 1)
                coin = tl.load(noise + (slot.to(tl.int64) * positions + place) * 2 + 1)
                mass = tl.load(chunk_mass + at, mask=there, other=0.0)
                shares = tl.where(there, mass * _weight(peak, best, heat).to(tl.float64), 0.0)
                total = tl.sum(shares, 0)
                nucleus = tl.load(top_p + slot)
                if nucleus < 1:
                    token = _draw_nucleus(row, total, coin, nucleus, best, heat, vocabulary, CHUNKS, CHUNK)
                else:
                    token = _draw(row, peak, shares, total, coin, best, heat, vocabulary, BLOCK_CHUNKS, CHUNK)
        else:
            tl.store(out_finite, 0)
        tl.store(out_token + t, token)
        tl.store(out_gap + t, gap)
