"""Calibration from a recorded trace (maths section 6): temperatures, isotonic and uncensored rates."""

from __future__ import annotations

import numpy as np

from adaverify_contracts import CalibrationError

# 0.2 .. 5 in steps of 5 %: finer steps move a confidence by less than 0.01 at |z| = 2.
TEMPERATURES = np.exp(np.linspace(np.log(0.2), np.log(5.0), 66))
BINS = 10


def expected_calibration_error(predicted: np.ndarray, observed: np.ndarray) -> float:
    """Return sum over ten equal bins of (n_b / n) |mean predicted - mean observed|; 0 for no data.

    Args:
        predicted: float [N] in [0, 1].
        observed: bool [N].
    """
    if len(predicted) == 0:
        return 0.0
    bins = np.minimum((predicted * BINS).astype(np.int64), BINS - 1)
    gap = np.bincount(bins, predicted, BINS) - np.bincount(bins, observed, BINS)
    return float(np.abs(gap).sum() / len(predicted))


def fit_temperatures(scores: np.ndarray, accepted: np.ndarray) -> np.ndarray:
    """Return T float64 [K] by sequential temperature scaling: c_k = sigmoid(z_k / T_k).

    T_1 .. T_{k-1} stay frozen while T_k minimises the calibration error of the product up to k against the
    accepted-prefix bit; of equal errors the temperature nearest 1 wins.

    Args:
        scores: float [N, K], raw scores of steps that verified everything.
        accepted: int [N], accepted drafts, 0 .. K.

    Raises:
        CalibrationError: no rows, or lengths that disagree.
    """
    if scores.ndim != 2 or len(scores) == 0 or len(accepted) != len(scores):
        raise CalibrationError(
            "temperatures need recorded steps",
            arrived=(scores.shape, np.shape(accepted)),
            allowed="scores [N, K] and accepted [N] with N >= 1, of steps that verified everything",
            remedy="record a trace in fixed mode first",
        )
    result = np.ones(scores.shape[1])
    before = np.ones(len(scores))
    candidates = TEMPERATURES[np.argsort(np.abs(np.log(TEMPERATURES)), kind="stable")]
    for k in range(scores.shape[1]):
        products = [before * _sigmoid(scores[:, k] / temperature) for temperature in candidates]
        errors = [expected_calibration_error(product, accepted > k) for product in products]
        best = int(np.argmin(errors))
        result[k], before = candidates[best], products[best]
    return result


def isotonic_rates(rates: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the non-decreasing rates nearest to ``rates`` in weighted squares (pool adjacent violators).

    Args:
        rates: float [N], ordered by score; conditionals, not survivals.
        weights: float [N] > 0, equal when None.
    """
    weights = np.ones(len(rates)) if weights is None else weights
    blocks: list[tuple[float, float, int]] = []
    for rate, weight in zip(rates.tolist(), weights.tolist(), strict=True):
        total, mass, length = rate * weight, weight, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / mass:
            before = blocks.pop()
            total, mass, length = total + before[0], mass + before[1], length + before[2]
        blocks.append((total, mass, length))
    return np.array([total / mass for total, mass, length in blocks for _ in range(length)])


def weighted_rate(accepted: np.ndarray, admission: np.ndarray) -> float:
    """Return the acceptance rate of a position freed from censoring: weights 1 / P(admitted) (maths M11).

    Args:
        accepted: bool [N], labels of admitted positions.
        admission: float [N], the probability with which each was admitted, above 0.
    """
    weights = 1.0 / admission
    return float((weights * accepted).sum() / weights.sum())


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(logits, -40.0, 40.0))))
