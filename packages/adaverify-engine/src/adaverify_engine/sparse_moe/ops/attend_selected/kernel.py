"""Flash decoding over a list of cache entries; keys are entries, values their first LATENT elements.

Everything is held transposed: scores are [entries, heads] = K q^T and the sum is [LATENT, heads] = V^T p. The
32 heads of an accelerator are then the *narrow* side of the sum and its 512 latent elements the wide one,
which is what a warp group's matrix instruction wants: at least 64 rows. An entry is loaded once and is key
and value.
"""

import triton
import triton.language as tl


@triton.jit
def attend_selected_kernel(
    query,  # [T, HEADS, LATENT + ROPE], row stride query_stride, heads dense
    own,  # [T, LATENT + ROPE]
    latents,  # [cells, LATENT + ROPE]
    picked,  # int32 or int64 [slots, SELECTED], dense; read with LISTED only
    token_slot,  # int32 [T]; read with LISTED only
    visible,  # int32 [T]
    token_request,  # int32 [T], -1 for padding
    table,  # int32 [R, W], row stride table_stride
    out,  # [T, HEADS, LATENT]; written with SPLITS = 1 only
    partial,  # float32 [T, SPLITS, HEADS, LATENT]; written with more only
    extremes,  # float32 [2, T, SPLITS, HEADS]: largest score (base 2), sum
    cells,  # int64 [T, SPLITS, BLOCK_SPAN], scratch
    query_stride,
    table_stride,
    extremes_stride,
    scale,
    HEADS: tl.constexpr,
    LINES: tl.constexpr,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    PAGE: tl.constexpr,
    SELECTED: tl.constexpr,
    SPLITS: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK_SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
    LISTED: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One split of one token's entries, all heads; grid (T, SPLITS). WIDEN computes in float32."""
    WIDE: tl.constexpr = LATENT + ROPE
    token = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    head = tl.arange(0, LINES)
    lane = tl.arange(0, LATENT)
    tail = tl.arange(0, ROPE)
    there = head < HEADS
    owner = tl.load(token_request + token)
    place = (token * SPLITS + split) * HEADS + head
    if owner < 0:
        if SPLITS == 1:
            zeros = tl.zeros([LATENT, LINES], out.dtype.element_ty)
            tl.store(out + place[None, :] * LATENT + lane[:, None], zeros, mask=there[None, :])
        return

    row = query + token * query_stride
    q = tl.load(row + head[None, :] * WIDE + lane[:, None], mask=there[None, :], other=0.0)
    q_tail = tl.load(row + head[None, :] * WIDE + LATENT + tail[:, None], mask=there[None, :], other=0.0)
    if WIDEN:
        q = q.to(tl.float32)
        q_tail = q_tail.to(tl.float32)
    seen = tl.load(visible + token)
    listed = seen > SELECTED
    m = tl.full([LINES], float("-inf"), tl.float32)
    total = tl.zeros([LINES], tl.float32)
    acc = tl.zeros([LATENT, LINES], tl.float32)
    if split == 0:
        # The token itself: not in the cache until it completes an entry, and then not twice as likely.
        mine = tl.load(own + token * WIDE + lane).to(tl.float32)
        mine_tail = tl.load(own + token * WIDE + LATENT + tail).to(tl.float32)
        m = tl.sum(q.to(tl.float32) * mine[:, None], 0)
        m = (m + tl.sum(q_tail.to(tl.float32) * mine_tail[:, None], 0)) * scale
        total = total + 1.0
        acc = acc + mine[:, None]

    first = split * SPAN
    last = tl.minimum(first + SPAN, tl.minimum(seen, SELECTED))
    # All cells of the split at once, through memory: in the loop an entry is then one load away, not three,
    # and its tile is fetched two steps ahead.
    spot = tl.arange(0, BLOCK_SPAN)
    order = first + spot
    wanted = order < last
    entry = order
    if LISTED:
        list_row = picked + tl.load(token_slot + token).to(tl.int64) * SELECTED
        chosen = tl.load(list_row + order, mask=wanted & listed, other=0).to(tl.int32)
        entry = tl.where(listed, chosen, order)
        wanted = wanted & (entry >= 0) & (entry < seen)
    pages = table + owner.to(tl.int64) * table_stride
    page = tl.load(pages + entry // PAGE, mask=wanted, other=0).to(tl.int64)
    found = cells + (token * SPLITS + split) * BLOCK_SPAN
    tl.store(found + spot, tl.where(wanted, page * PAGE + entry % PAGE, -1))
    tl.debug_barrier()
    for begin in range(0, last - first, BLOCK):
        cell = tl.load(found + begin + tl.arange(0, BLOCK))
        live = cell >= 0
        start = latents + cell * WIDE
        k = tl.load(start[:, None] + lane[None, :], mask=live[:, None], other=0.0)
        k_tail = tl.load(start[:, None] + LATENT + tail[None, :], mask=live[:, None], other=0.0)
        if WIDEN:
            k = k.to(tl.float32)
            k_tail = k_tail.to(tl.float32)
        x = tl.dot(k, q, input_precision="ieee")
        x = tl.dot(k_tail, q_tail, acc=x, input_precision="ieee") * scale
        x = tl.where(live[:, None], x, float("-inf"))
        higher = tl.maximum(m, tl.max(x, 0))
        # A split that has seen nothing yet keeps -inf; subtracting it from itself would give NaN.
        level = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(x - level[None, :])
        shrink = tl.exp2(m - level)
        total = total * shrink + tl.sum(p, 0)
        acc = acc * shrink[None, :]
        acc = tl.dot(tl.trans(k), p.to(k.dtype), acc=acc, input_precision="ieee")
        m = higher

    if SPLITS == 1:
        result = (acc / total[None, :]).to(out.dtype.element_ty)
        tl.store(out + place[None, :] * LATENT + lane[:, None], result, mask=there[None, :])
    else:
        tl.store(partial + place[None, :] * LATENT + lane[:, None], acc, mask=there[None, :])
        tl.store(extremes + place, m, mask=there)
        tl.store(extremes + extremes_stride + place, total, mask=there)


@triton.jit
def combine_selected_kernel(
    partial,  # float32 [T, SPLITS, HEADS, LATENT]
    extremes,  # float32 [2, T, SPLITS, HEADS]
    token_request,  # int32 [T]
    out,  # [T, HEADS, LATENT]
    extremes_stride,
    HEADS: tl.constexpr,
    LATENT: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Combine the splits of one head of one token; grid (T, HEADS). A padding token becomes 0."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    lane = tl.arange(0, LATENT)
    split = tl.arange(0, SPLITS)
    real = tl.load(token_request + token) >= 0
    place = (token * SPLITS + split) * HEADS + head
    m = tl.load(extremes + place, mask=real & (split >= 0), other=float("-inf"))
    total = tl.load(extremes + extremes_stride + place, mask=real & (split >= 0), other=0.0)
    part = tl.load(
        partial + place[:, None] * LATENT + lane[None, :], mask=real & (place[:, None] >= 0), other=0.0
    )
    highest = tl.max(m, 0)
    weight = tl.exp2(m - tl.where(real, highest, 0.0))
    whole = tl.sum(weight * total, 0)
    result = tl.sum(part * weight[:, None], 0) / tl.where(real, whole, 1.0)
    tl.store(out + (token * HEADS + head) * LATENT + lane, result.to(out.dtype.element_ty))
