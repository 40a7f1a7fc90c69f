"""The assignment in NumPy, for tensors that live on the host; integer by integer the torch reference's."""

from __future__ import annotations

import numpy as np

from adaverify_verification.quantise import SCORE_MAX, scores
from adaverify_vllm.assignment.reference import HOPELESS

_LAST = np.iinfo(np.int64).max


def admit_host(confidences: np.ndarray, scheduled: np.ndarray, budget: int) -> np.ndarray:
    """Return the admitted drafts int64 [R] of the ``budget`` best.

    Args:
        confidences: float32 [R, K].
        scheduled: int32 [R], plus ``HOPELESS`` where no draft can be accepted.
        budget: drafts to admit; clamped to 0 and the scheduled ones.
    """
    counts = (scheduled % HOPELESS).astype(np.int64)
    size = max(0, min(budget, int(counts.sum())))
    if size == int(counts.sum()):
        return counts
    if not size:
        return np.zeros_like(counts)
    requests, width = confidences.shape
    position = np.arange(width)
    found = scores(confidences).astype(np.int64)
    found[scheduled >= HOPELESS] = 0
    order = ((SCORE_MAX - found) * width + position) * requests + np.arange(requests)[:, None]
    order = np.where(position < counts[:, None], order, _LAST)
    cut = np.partition(order.ravel(), size - 1)[size - 1]
    admitted: np.ndarray = (order <= cut).sum(axis=1)
    return admitted
