"""One program decides which draft tokens are verified and writes every boundary that follows from it.

For request r and position k: ``s = c[r,0] x ... x c[r,k]`` in float32, left to right,
``q = floor(s x 65535 + 0.5)`` and ``key = q x 2**P + (2**P - 1 - k)`` with 2**P > K: larger is better, and
within a request keys fall strictly, so a cut through the keys admits prefixes. The B-th largest key is found
bit by bit (16 + P counts); keys equal to it belong to different requests and are admitted in request order.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _key(score, k: tl.constexpr, POSITION_BITS: tl.constexpr):
    return (score << POSITION_BITS) + ((1 << POSITION_BITS) - 1 - k)


@triton.jit(do_not_specialize=["requests", "padded_tokens"])
def assign_kernel(
    confidences,  # float32 [R, K], row stride confidence_stride
    scheduled,  # int32 [R], -1 for padding requests
    kv_lens,  # int32 [R]
    budget,  # int32 [1]
    admitted,  # int32 [R]
    query_start_loc,  # int32 [R + 1]
    seq_lens,  # int32 [R]
    token_request,  # int32 [padded_tokens]
    token_offset,  # int32 [padded_tokens]
    confidence_stride,
    requests,
    padded_tokens,
    DRAFTS: tl.constexpr,
    POSITION_BITS: tl.constexpr,
    BLOCK_REQUESTS: tl.constexpr,
    BLOCK_TAIL: tl.constexpr,
):
    """Admit the best ``budget`` scheduled positions; grid (1,), must be built without fused multiply-add."""
    r = tl.arange(0, BLOCK_REQUESTS)
    exists = r < requests
    drafts = tl.load(scheduled + r, mask=exists, other=-1)
    real = drafts >= 0
    candidates = tl.minimum(tl.maximum(drafts, 0), DRAFTS)

    # One register tensor a position: a scan along a tile would multiply as a tree, not left to right.
    keys = ()
    alive = tl.full([BLOCK_REQUESTS], 1.0, tl.float32)
    for k in tl.static_range(DRAFTS):
        scheduled_here = k < candidates
        c = tl.load(confidences + r * confidence_stride + k, mask=scheduled_here, other=0.0)
        alive = alive * tl.where(c > 0.0, tl.minimum(c, 1.0), 0.0)
        score = (alive * 65535.0 + 0.5).to(tl.int32)
        key = tl.where(scheduled_here, _key(score, k, POSITION_BITS), -1)
        keys = keys + (key,)  # noqa: RUF005 - Triton has no unpacking

    room = tl.maximum(padded_tokens - tl.sum(real.to(tl.int32), 0), 0)
    size = tl.minimum(tl.minimum(tl.load(budget), tl.sum(candidates, 0)), room)
    size = tl.maximum(size, 0)

    cut = size * 0
    for step in range(16 + POSITION_BITS):
        trial = cut | (1 << (15 + POSITION_BITS - step))
        reached = tl.zeros([BLOCK_REQUESTS], tl.int32)
        for k in tl.static_range(DRAFTS):
            reached += (keys[k] >= trial).to(tl.int32)
        cut = tl.where(tl.sum(reached, 0) >= size, trial, cut)

    above = tl.zeros([BLOCK_REQUESTS], tl.int32)
    equal = tl.zeros([BLOCK_REQUESTS], tl.int32)
    for k in tl.static_range(DRAFTS):
        above += (keys[k] > cut).to(tl.int32)
        equal += (keys[k] == cut).to(tl.int32)
    rank = tl.cumsum(equal, 0) - equal
    taken = above + tl.where((equal > 0) & (rank < size - tl.sum(above, 0)), 1, 0)

    query_len = tl.where(real, taken + 1, 0)
    end = tl.cumsum(query_len, 0)
    start = end - query_len
    tl.store(admitted + r, taken, mask=exists)
    tl.store(query_start_loc, 0)
    tl.store(query_start_loc + 1 + r, end, mask=exists)
    lens = tl.load(kv_lens + r, mask=exists, other=0)
    tl.store(seq_lens + r, tl.where(real, lens + query_len, 0), mask=exists)

    for j in tl.static_range(DRAFTS + 1):
        inside = (j < query_len) & (start + j < padded_tokens)
        tl.store(token_request + start + j, r, mask=inside)
        tl.store(token_offset + start + j, tl.full([BLOCK_REQUESTS], j, tl.int32), mask=inside)

    total = tl.sum(query_len, 0)
    for first in range(total, padded_tokens, BLOCK_TAIL):
        t = first + tl.arange(0, BLOCK_TAIL)
        nobody = tl.full([BLOCK_TAIL], -1, tl.int32)
        tl.store(token_request + t, nobody, mask=t < padded_tokens)
        tl.store(token_offset + t, nobody, mask=t < padded_tokens)
