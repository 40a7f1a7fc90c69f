"""One launch copies the query and the weights of each slot's token."""

import triton.language as tl


def gather_slots_kernel(
    row_token, query, weights, slot_query, slot_weights, WORDS: tl.constexpr, HEADS: tl.constexpr
):
    """slot_query[s] = query[t], slot_weights[s] = weights[t] for t = max(row_token[s], 0).

    A query of H heads of D bytes moves as WORDS = H D / 4 words of four bytes: 2048 are 16 a thread.
    """
    slot = tl.program_id(0).to(tl.int64)
    token = tl.maximum(tl.load(row_token + slot), 0).to(tl.int64)
    word = tl.arange(0, WORDS)
    tl.store(slot_query + slot * WORDS + word, tl.load(query + token * WORDS + word))
    head = tl.arange(0, HEADS)
    tl.store(slot_weights + slot * HEADS + head, tl.load(weights + token * HEADS + head))
