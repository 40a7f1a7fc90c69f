"""The budgets worth considering, and what each buys (maths sections 1 to 3)."""

from __future__ import annotations

import numpy as np

# Survivals are integers in 0 .. 2**16 - 1 on every rank; see quantise.py.
SCORE_ONE = 65535
# An array without a dimension: NumPy makes one of a number in every call, which takes a third of it.
ONE = np.array(float(SCORE_ONE))


def executed_tokens(tokens: np.ndarray, tiers: np.ndarray) -> np.ndarray:
    """Return what executes for each of ``tokens``: the smallest tier that holds it, itself past the last.

    Args:
        tokens: int64, any shape.
        tiers: int64, strictly rising, possibly empty.
    """
    if not len(tiers):
        return tokens
    index = np.searchsorted(tiers, tokens)
    return np.where(index < len(tiers), tiers[np.minimum(index, len(tiers) - 1)], tokens)


def candidate_budgets(certain: int, maximum: int, tiers: np.ndarray) -> np.ndarray:
    """Return the budgets that can be optimal, int64 rising, 0 first and ``maximum`` (everything) last.

    On one tier the cost is constant and tokens rise, so an optimum is a tier end or everything (maths section
    3). Past the last tier, and without tiers, every budget executes as itself and is a candidate.

    Args:
        certain: T, query tokens that are not drafts.
        maximum: N, the largest budget this step can run, at least 0.
        tiers: int64, strictly rising, possibly empty.
    """
    if not len(tiers):
        return np.arange(maximum + 1, dtype=np.int64)
    ends = tiers - certain
    ends = ends[(ends > 0) & (ends < maximum)]
    beyond = np.arange(max(1, int(tiers[-1]) - certain + 1), maximum, dtype=np.int64)
    edges = [0] if maximum == 0 else [0, maximum]
    return np.concatenate([edges[:1], ends, beyond, edges[1:]]).astype(np.int64)


def raise_to_tier_end(budget: int, certain: int, maximum: int, tiers: np.ndarray) -> int:
    """Return the largest budget that executes the same tier as ``budget``: its padding is free."""
    bounded = max(0, min(budget, maximum))
    tier = int(executed_tokens(np.array([certain + bounded], dtype=np.int64), tiers)[0])
    return min(maximum, tier - certain)


def ranked_scores(
    scores: np.ndarray, scheduled: np.ndarray | None = None, total: int | None = None
) -> np.ndarray:
    """Return the quantised survivals of all scheduled drafts, largest first, uint16 [sum scheduled].

    Args:
        scores: int [R, K] quantised survivals, 0 .. 65535.
        scheduled: int64 [R], 0 .. K; None for all drafts.
        total: the sum of ``scheduled`` where it is known.
    """
    # In whatever order they lie: equal survivals are worth the same.
    offered = scores.ravel("K")
    if scheduled is not None and (int(scheduled.sum()) if total is None else total) < offered.size:
        offered = scores[np.arange(scores.shape[1]) < scheduled[:, None]]
    ranked = offered.astype(np.uint16)
    # A stable sort of 16-bit integers is a radix sort: 1792 scores in about 10 us, on any processor. The
    # default one is faster where the processor has instructions for it, and much slower where it has none.
    ranked.sort(kind="stable")
    return ranked[::-1]


def sums(ranked: np.ndarray) -> np.ndarray:
    """Return the sums of the largest 0, 1, .. N survivals, float64 [N + 1], each of them exact.

    Args:
        ranked: uint16 [N] quantised survivals, largest first.
    """
    # Integers below 2**53: no sum is rounded.
    found = np.zeros(len(ranked) + 1)
    found[1:] = ranked
    np.add.accumulate(found, 0, None, found)
    return found


def worths(sums: np.ndarray, budgets: np.ndarray) -> np.ndarray:
    """Return the expected accepted tokens of each budget, float64 [C].

    Args:
        sums: float64 [N + 1], of the largest quantised survivals.
        budgets: int64 [C] in 0 .. N, strictly rising.
    """
    # As many budgets as sums are all of them.
    found: np.ndarray = (sums if len(budgets) == len(sums) else sums[budgets]) / ONE
    return found


def admit(scores: np.ndarray, scheduled: np.ndarray, budget: int) -> np.ndarray:
    """Return the admitted drafts of each request, int64 [R], for the ``budget`` largest survivals.

    The total order is (survival falling, position rising, request rising); it makes each request's admitted
    drafts a prefix and plans for n and n + 1 nested (maths M1, M18). The device ranks live confidences by the
    same order; this host form serves placeholders, replay and tests.
    """
    requests, width = scores.shape
    rows, positions = np.nonzero(np.arange(width) < scheduled[:, None])
    order = np.lexsort((rows, positions, -scores[rows, positions].astype(np.int64)))
    chosen = rows[order[: max(0, budget)]]
    return np.bincount(chosen, minlength=requests).astype(np.int64)
