"""Causal attention of prompt chunks over paged KV: one program a tile of tokens and KV head, online softmax.

With x_i = (q . k_i) head_dim^-0.5 log2(e) over the positions i <= the token's own: m = max x_i,
out = sum 2^(x_i - m) v_i / sum 2^(x_i - m), block by block from position 0.

Blocks begin at multiples of BLOCK from position 0 and a line of a tile never meets another line; a block
past a token's own position multiplies its sums by 1 and adds 0. So a token's result depends on its own query,
position and pages only, however its prompt was cut into chunks and whatever else is in the step.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["table_stride"])
def paged_prefill_kernel(
    query,  # [T, heads, D], D dense
    keys,  # [pool tokens, kv_heads, D], D dense
    values,  # like keys
    tiles,  # int32 [P, 4]: first token, tokens, position of the first one, row of the table
    table,  # int32 [C, W], row stride table_stride
    out,  # [T, heads, D], dense
    query_stride,
    query_head_stride,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    table_stride,
    scale,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    LINES: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One tile of up to LINES // GROUP tokens of one chunk; grid (P, kv_heads).

    Line i of the tile is query head i % GROUP of token i // GROUP. WIDEN turns factors into float32 first,
    which changes no product.
    """
    tile = tiles + tl.program_id(0) * 4
    kv_head = tl.program_id(1)
    first = tl.load(tile)
    count = tl.load(tile + 1)
    if count == 0:
        # A captured pass has as many tiles as its size may need.
        return
    start = tl.load(tile + 2)
    row_table = table + tl.load(tile + 3).to(tl.int64) * table_stride

    lane = tl.arange(0, DIM)
    line = tl.arange(0, LINES)
    slot = line // GROUP
    there = slot < count
    # What a line past the last token computes is stored nowhere; it sees position 0 as all do.
    position = tl.where(there, start + slot, 0)
    token64 = (first + slot).to(tl.int64)
    head64 = (kv_head * GROUP + line % GROUP).to(tl.int64)
    at = token64 * query_stride + head64 * query_head_stride
    q = tl.load(query + at[:, None] + lane[None, :], mask=there[:, None], other=0.0)
    if WIDEN:
        q = q.to(tl.float32)

    key_base = keys + kv_head.to(tl.int64) * key_head_stride
    value_base = values + kv_head.to(tl.int64) * value_head_stride
    m = tl.full([LINES], float("-inf"), tl.float32)
    total = tl.zeros([LINES], tl.float32)
    acc = tl.zeros([LINES, DIM], tl.float32)
    end = start + count
    for begin in range(0, end, BLOCK):
        spot = begin + tl.arange(0, BLOCK)
        seen = spot < end
        page = tl.load(row_table + spot // PAGE, mask=seen, other=0).to(tl.int64)
        cell = page * PAGE + spot % PAGE
        # What lies past the tile's last position may be anything, NaN included: it is never loaded.
        k = tl.load(key_base + cell[:, None] * key_stride + lane[None, :], mask=seen[:, None], other=0.0)
        if WIDEN:
            k = k.to(tl.float32)
        x = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        x = tl.where(spot[None, :] <= position[:, None], x, float("-inf"))
        # Every line sees position 0 in the first block: the largest is finite from there on.
        higher = tl.maximum(m, tl.max(x, 1))
        p = tl.exp2(x - higher[:, None])
        shrink = tl.exp2(m - higher)
        total = total * shrink + tl.sum(p, 1)
        v = tl.load(value_base + cell[:, None] * value_stride + lane[None, :], mask=seen[:, None], other=0.0)
        p = p.to(v.dtype)
        if WIDEN:
            p = p.to(tl.float32)
            v = v.to(tl.float32)
        acc = acc * shrink[:, None] + tl.dot(p, v, input_precision="ieee")
        m = higher

    place = (token64 * (tl.num_programs(1) * GROUP) + head64) * DIM
    result = acc / total[:, None]
    tl.store(out + place[:, None] + lane[None, :], result.to(out.dtype.element_ty), mask=there[:, None])
