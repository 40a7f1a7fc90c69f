"""The assignment in NumPy for tensors that already live on the host.

Torch spends 0.51 ms on some forty small operations at 16 x 7 on a two-core CPU; NumPy on the same memory
0.11 ms, where a CPU step can spare 0.3. Tested equal to the torch reference, integer by integer.
"""

from __future__ import annotations

import numpy as np

from adaverify_verification.quantise import SCORE_MAX, scores

_LAST = np.iinfo(np.int64).max


def assign_host(
    confidences: np.ndarray,
    scheduled: np.ndarray,
    kv_lens: np.ndarray,
    budget: np.ndarray,
    padded_tokens: int,
    outputs: tuple[np.ndarray, ...],
) -> None:
    """Write what ``assign_reference`` returns into ``outputs``, in the order of ``Assignment``.

    Args:
        confidences: float32 [R, K].
        scheduled: int32 [R].
        kv_lens: int32 [R].
        budget: int32 [1].
        padded_tokens: query tokens to describe.
        outputs: int32 arrays [R], [R + 1], [R], [padded_tokens], [padded_tokens], written in place.
    """
    admitted, query_start_loc, seq_lens, token_request, token_offset = outputs
    requests, drafts = confidences.shape
    position = np.arange(drafts)
    request = np.arange(requests)
    real = scheduled >= 0

    candidate = position < scheduled[:, None]
    room = max(padded_tokens - int(real.sum()), 0)
    size = max(min(int(budget[0]), int(candidate.sum()), room), 0)
    if size:
        order = (SCORE_MAX - scores(confidences)).astype(np.int64) * drafts + position
        order = np.where(candidate, order * requests + request[:, None], _LAST)
        # Every real order is unique, so everything up to the B-th smallest is exactly B positions.
        cut = np.partition(order.ravel(), size - 1)[size - 1]
        (order <= cut).sum(axis=1, out=admitted)
    else:
        admitted[:] = 0

    query_lens = np.where(real, admitted + 1, 0)
    query_start_loc[0] = 0
    np.cumsum(query_lens, out=query_start_loc[1:])
    seq_lens[:] = np.where(real, kv_lens + query_lens, 0)

    owner = np.repeat(request, query_lens)[:padded_tokens]
    token_request[: len(owner)] = owner
    token_offset[: len(owner)] = np.arange(len(owner)) - query_start_loc[owner]
    token_request[len(owner) :] = -1
    token_offset[len(owner) :] = -1
