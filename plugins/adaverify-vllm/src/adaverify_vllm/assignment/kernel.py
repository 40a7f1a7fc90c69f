"""One program decides which drafts are verified and writes every boundary that vLLM reads.

For request r and position k: ``s = c[r,0] x ... x c[r,k]`` in float32, left to right,
``q = floor(s x 65535 + 0.5)`` and ``key = q x 2**P + (2**P - 1 - k)`` with 2**P > K: larger is better, and
within a request keys fall strictly, so a cut through the keys admits prefixes. The B-th largest key is found
bit by bit; keys equal to it belong to different requests and are admitted in request order.
"""

import triton.language as tl


def assign_kernel(
    table,  # float32 [slots, DRAFTS + 2], rows table_stride apart
    rows,  # int64 [R], slots
    staged,  # int32 [2, staged_stride]: scheduled (plus HOPELESS), certain
    admitted,  # int32 [R]
    cu_num_logits,  # int32 [R + 1]
    query_start_loc,  # int32 [ends]
    table_stride,
    staged_stride,
    requests,
    budget,
    total,  # query tokens of the batch: what the tail of query_start_loc holds
    ends,
    bonus,
    DRAFTS: tl.constexpr,
    POSITION_BITS: tl.constexpr,
    HOPELESS: tl.constexpr,
    BLOCK_REQUESTS: tl.constexpr,
    BLOCK_TAIL: tl.constexpr,
):
    """Grid (1,); must be built without fused multiply-add."""
    r = tl.arange(0, BLOCK_REQUESTS)
    exists = r < requests
    slot = tl.load(rows + r, mask=exists, other=0)
    entry = table + slot * table_stride
    word = tl.load(staged + r, mask=exists, other=0)
    certain = tl.load(staged + staged_stride + r, mask=exists, other=0)
    hope = word < HOPELESS
    candidates = tl.minimum(tl.maximum(word % HOPELESS, 0), DRAFTS)

    # One register tensor a position: a scan along a tile would multiply as a tree, not left to right.
    keys = ()
    alive = tl.full([BLOCK_REQUESTS], 1.0, tl.float32)
    for k in tl.static_range(DRAFTS):
        here = exists & (k < candidates)
        c = tl.load(entry + k, mask=here & hope, other=0.0)
        alive = alive * tl.where(c > 0.0, tl.minimum(c, 1.0), 0.0)
        score = (alive * 65535.0 + 0.5).to(tl.int32)
        key = tl.where(here, (score << POSITION_BITS) + ((1 << POSITION_BITS) - 1 - k), -1)
        keys = keys + (key,)  # noqa: RUF005 - Triton has no unpacking

    size = tl.maximum(tl.minimum(budget, tl.sum(candidates, 0)), 0)
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

    tl.store(admitted + r, taken, mask=exists)
    # The column behind the confidences and the length: what the relay brings back as verified.
    tl.store(entry + DRAFTS + 1, taken.to(tl.float32), mask=exists)
    tl.store(cu_num_logits, 0)
    tl.store(cu_num_logits + 1 + r, tl.cumsum(tl.where(exists, taken + bonus, 0), 0), mask=exists)
    tl.store(query_start_loc, 0)
    tl.store(query_start_loc + 1 + r, tl.cumsum(tl.where(exists, taken + certain, 0), 0), mask=exists)
    # Not a range: the interpreter converts a range's bound in a way that numpy deprecates.
    first = requests + 1
    while first < ends:
        i = first + tl.arange(0, BLOCK_TAIL)
        tl.store(query_start_loc + i, tl.full([BLOCK_TAIL], 0, tl.int32) + total, mask=i < ends)
        first += BLOCK_TAIL
