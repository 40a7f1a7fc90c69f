"""The budget of somebody who knows what will be accepted, spent as every policy spends it."""

from __future__ import annotations

import numpy as np

from adaverify_verification.quantise import scores as survivals


def best_budget(
    scores: np.ndarray, truth: np.ndarray, tiers: np.ndarray, seconds: np.ndarray
) -> tuple[int, np.ndarray]:
    """Return the budget that emits most a second when confidences rank the drafts, and its prefixes.

    Prefixes are int64 [R]. What separates this from an adaptive step is the choice of the budget alone.

    Args:
        scores: float32 [R, K], logits; truth: int64 [R].
        tiers: int64, rising, each at least R; seconds: float64, step time of each.
    """
    requests, width = scores.shape
    ranked = survivals(1.0 / (1.0 + np.exp(-np.clip(scores, -30.0, 30.0))))
    # Position by position, so that a stable sort breaks ties as the total order does: position, then request.
    order = np.argsort(-ranked.T.ravel(), kind="stable")
    row, place = order % requests, order // requests
    kept = np.concatenate([[0], np.cumsum(place < truth[row])])
    budgets = np.minimum(tiers - requests, requests * width)
    best = int(np.argmax((requests + kept[budgets]) / seconds))
    budget = int(budgets[best])
    return budget, np.bincount(row[:budget], minlength=requests)
