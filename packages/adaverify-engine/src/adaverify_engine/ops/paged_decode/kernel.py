"""Flash decoding over rows: partial softmaxes of fixed splits of the KV, then one combination a token.

With x_i = (q . k_i) head_dim^-0.5 log2(e) over the positions i of a split: m = max x_i,
l = sum 2^(x_i - m), a = sum 2^(x_i - m) v_i. Over splits s: out = sum 2^(m_s - m) a_s / sum 2^(m_s - m) l_s.

A split ends at a multiple of SPLIT tokens whatever the batch is, and a line of a tile never meets another
line, so a token's result depends on its own query, pages and length only.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "tokens"])
def paged_decode_kernel(
    query,  # [T, heads, D], D dense
    keys,  # [pool tokens, kv_heads, D], D dense
    values,  # like keys
    row_lens,  # int32 [M, N]
    row_token,  # int32 [M, N]
    row_request,  # int32 [M]
    token_slot,  # int32 [T]
    table,  # int32 [M, W], row stride table_stride
    out,  # [T, heads, D], D dense; written with WHOLE only
    partial,  # float32 [T, heads, splits, D]; written without WHOLE only
    extremes,  # float32 [2, T, heads, splits]: m, then l
    query_stride,
    query_head_stride,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    table_stride,
    out_stride,
    out_head_stride,
    splits,
    extremes_stride,
    scale,
    rows,
    tokens,
    SLOTS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    JOIN: tl.constexpr,
    BACK: tl.constexpr,
    LINES: tl.constexpr,
    LINE_BLOCKS: tl.constexpr,
    PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One split of up to JOIN neighbouring rows of one request; grid (rows, kv_heads x LINE_BLOCKS, splits).

    Line i of the tile is query head i % GROUP of slot i // GROUP. Rows of a request lie next to one another
    and each sees at least what the one before it sees, so the last row's pages serve all, read once. With
    WHOLE there is one split, the result is final, and programs 0 .. T - 1 zero the padding tokens. WIDEN
    turns factors into float32 first, which changes no product.
    """
    row = tl.program_id(0)
    kv_head = tl.program_id(1) // LINE_BLOCKS
    split = tl.program_id(2)
    lane = tl.arange(0, DIM)
    line = (tl.program_id(1) % LINE_BLOCKS) * LINES + tl.arange(0, LINES)
    head = kv_head * GROUP + line % GROUP

    if WHOLE:
        slot_of = tl.load(token_slot + row, mask=row < tokens, other=0)
        held = tl.load(row_token + slot_of, mask=(row < tokens) & (slot_of < rows * SLOTS), other=-1)
        mine = (line < GROUP) & (row < tokens) & (held != row)
        place = row.to(tl.int64) * out_stride + head.to(tl.int64) * out_head_stride
        zeros = tl.zeros([LINES, DIM], out.dtype.element_ty)
        tl.store(out + place[:, None] + lane[None, :], zeros, mask=mine[:, None])

    owner = tl.load(row_request + row, mask=row < rows, other=-1)
    leads = row < rows
    if JOIN > 1:
        earlier = row - 1 - tl.arange(0, BACK)
        # The mask names rows too: programs past the last row come from zeroing and look back at real ones.
        before = tl.load(row_request + earlier, mask=(earlier >= 0) & (earlier < rows), other=-1)
        leads = leads & (tl.sum((before == owner).to(tl.int32), 0) % JOIN == 0)
    if not leads:
        return

    slot = line // GROUP
    member = row + slot // SLOTS
    there = (slot < JOIN * SLOTS) & (member < rows)
    # Rows after the request's last belong to others.
    there = there & (tl.load(row_request + member, mask=there, other=-1) == owner)
    index = row * SLOTS + slot
    length = tl.load(row_lens + index, mask=there, other=0)
    token = tl.load(row_token + index, mask=there, other=-1)
    there = there & (token >= 0)
    length = tl.where(there, length, 0)
    last = tl.max(tl.where(there, member, row), 0)
    first = split * SPLIT
    span = tl.max(tl.minimum(length - first, SPLIT), 0)
    if (not WHOLE) & (span <= 0):
        return

    token64, head64 = token.to(tl.int64), head.to(tl.int64)
    at = token64 * query_stride + head64 * query_head_stride
    q = tl.load(query + at[:, None] + lane[None, :], mask=there[:, None], other=0.0)
    if WIDEN:
        q = q.to(tl.float32)
    row_table = table + last.to(tl.int64) * table_stride
    key_base = keys + kv_head * key_head_stride
    value_base = values + kv_head * value_head_stride
    m = tl.full([LINES], float("-inf"), tl.float32)
    total = tl.zeros([LINES], tl.float32)
    acc = tl.zeros([LINES, DIM], tl.float32)
    for begin in range(0, span, BLOCK):
        within = begin + tl.arange(0, BLOCK)
        seen = within < span
        position = first + within
        page = tl.load(row_table + position // PAGE, mask=seen, other=0).to(tl.int64)
        spot = page * PAGE + position % PAGE
        # What lies past the row's length may be anything, NaN included: it is never loaded.
        k = tl.load(key_base + spot[:, None] * key_stride + lane[None, :], mask=seen[:, None], other=0.0)
        if WIDEN:
            k = k.to(tl.float32)
        x = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        x = tl.where(position[None, :] < length[:, None], x, float("-inf"))
        higher = tl.maximum(m, tl.max(x, 1))
        # A line that has seen nothing yet keeps -inf; subtracting it from itself would give NaN.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(x - base[:, None])
        shrink = tl.exp2(m - base)
        total = total * shrink + tl.sum(p, 1)
        v = tl.load(value_base + spot[:, None] * value_stride + lane[None, :], mask=seen[:, None], other=0.0)
        p = p.to(v.dtype)
        if WIDEN:
            p = p.to(tl.float32)
            v = v.to(tl.float32)
        acc = acc * shrink[:, None] + tl.dot(p, v, input_precision="ieee")
        m = higher

    if WHOLE:
        result = acc / tl.where(length > 0, total, 1.0)[:, None]
        place = token64 * out_stride + head64 * out_head_stride
        tl.store(out + place[:, None] + lane[None, :], result.to(out.dtype.element_ty), mask=there[:, None])
    else:
        # Splits past a slot's own length are not read by the combination.
        wanted = there & (length > first)
        heads = (tl.num_programs(1) // LINE_BLOCKS) * GROUP
        cell = (token64 * heads + head64) * splits + split
        tl.store(partial + cell[:, None] * DIM + lane[None, :], acc, mask=wanted[:, None])
        tl.store(extremes + cell, m, mask=wanted)
        tl.store(extremes + extremes_stride + cell, total, mask=wanted)


@triton.jit(do_not_specialize=["rows"])
def paged_decode_combine_kernel(
    partial,  # float32 [T, heads, splits, D]
    extremes,  # float32 [2, T, heads, splits]: m, then l
    row_lens,  # int32 [M, N]
    row_token,  # int32 [M, N]
    token_slot,  # int32 [T]
    out,  # [T, heads, D], D dense
    out_stride,
    out_head_stride,
    splits,
    extremes_stride,
    rows,
    SLOTS: tl.constexpr,
    DIM: tl.constexpr,
    SPLIT: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Combine the splits of one head of one token; grid (T, heads). A padding token becomes 0.

    CHUNK splits at once and chunks in order: the sum's order depends on the token's own length only.
    """
    token = tl.program_id(0)
    head = tl.program_id(1)
    lane = tl.arange(0, DIM)
    slot = tl.load(token_slot + token)
    inside = slot < rows * SLOTS
    held = tl.load(row_token + slot, mask=inside, other=-1)
    length = tl.load(row_lens + slot, mask=inside, other=0)
    used = tl.where(held == token, (length + SPLIT - 1) // SPLIT, 0)
    cell = (token.to(tl.int64) * tl.num_programs(1) + head) * splits
    # Blocks of one element, which is what a chunk's blocks make of them.
    m = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    acc = tl.zeros([DIM], tl.float32)
    for begin in range(0, used, CHUNK):
        split = begin + tl.arange(0, CHUNK)
        there = split < used
        part_m = tl.load(extremes + cell + split, mask=there, other=float("-inf"))
        part_total = tl.load(extremes + extremes_stride + cell + split, mask=there, other=0.0)
        part = tl.load(
            partial + (cell + split)[:, None] * DIM + lane[None, :], mask=there[:, None], other=0.0
        )
        higher = tl.maximum(m, tl.max(part_m, 0))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp2(part_m - base)
        shrink = tl.exp2(m - base)
        total = total * shrink + tl.sum(part_total * weight, 0)
        acc = acc * shrink + tl.sum(part * weight[:, None], 0)
        m = higher
    result = acc / tl.where(used > 0, total, 1.0)
    place = token.to(tl.int64) * out_stride + head.to(tl.int64) * out_head_stride
    tl.store(out + place + lane, result.to(out.dtype.element_ty))
