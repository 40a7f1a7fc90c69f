"""Calibration from a recorded trace (maths section 6): temperatures by position."""

from __future__ import annotations

import numpy as np

from adaverify_contracts import CalibrationError
from adaverify_verification.evidence import Evidence
from adaverify_verification.reliability import misfit

# 0.2 .. 5 in steps of 5 %, 1 among them: finer steps move a confidence by less than 0.01 at |z| = 2.
TEMPERATURES = 5.0 ** (np.arange(-33, 34) / 33.0)
# Nearest 1 first, so that of equal errors the least correction wins.
_CANDIDATES = TEMPERATURES[np.argsort(np.abs(np.log(TEMPERATURES)), kind="stable")]
IDENTITY = 1.0


def fit_temperatures(
    scores: np.ndarray, accepted: np.ndarray, judged: np.ndarray | None = None, *, least: int = 0
) -> np.ndarray:
    """Return T float64 [K] by sequential temperature scaling: c_k = sigmoid(z_k / T_k).

    T_1 .. T_{k-1} stay frozen while T_k minimises the calibration error of the product up to k against the
    accepted-prefix bit; of equal errors the temperature nearest 1 wins. A pure function of the rows counted:
    their order changes no bit. Scores are held to +-1000, infinities among them.

    Args:
        scores: float [N, K], raw scores of steps that verified everything.
        accepted: int [N], accepted drafts, 0 .. K.
        judged: int [N], leading positions that count; None where all do. From the first score on that is not
            a number a row does not count.
        least: a position with fewer accepted or fewer refused prefixes keeps T = 1: tiny windows give absurd
            temperatures.

    Raises:
        CalibrationError: no rows, lengths that disagree, or counts outside 0 .. K.
    """
    if np.ndim(scores) != 2 or len(scores) == 0 or len(accepted) != len(scores):
        raise CalibrationError(
            "temperatures need recorded steps",
            arrived=(np.shape(scores), np.shape(accepted)),
            allowed="scores [N, K] and accepted [N] with N >= 1, of steps that verified everything",
            remedy="record a trace in fixed mode first",
        )
    if judged is None:
        judged = np.full(len(scores), scores.shape[1], np.int64)
    nobody = np.zeros(len(scores), np.int64)
    rows = Evidence(scores, np.asarray(accepted), judged, nobody)
    result = np.full(rows.draft_tokens, IDENTITY)
    before = np.ones(len(rows))
    for k in range(rows.draft_tokens):
        counted = rows.judged > k
        survived = rows.accepted[counted] > k
        enough = min(np.count_nonzero(survived), np.count_nonzero(~survived)) >= least
        if enough and len(survived):
            result[k] = _best(before[counted], rows.scores[counted, k], survived)
        before = before * sigmoid(rows.scores[:, k] / result[k])
    return result


def survivals(scores: np.ndarray, temperatures: np.ndarray) -> np.ndarray:
    """Return the products of sigmoid(z / T) up to each position, float64 [N, K], for scores float [N, K]."""
    return np.cumprod(sigmoid(scores / temperatures), axis=1)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x)) in float64 with x held to +-40."""
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(logits, -40.0, 40.0))))


def _best(before: np.ndarray, scores: np.ndarray, survived: np.ndarray) -> float:
    misfits = [misfit(before * sigmoid(scores / temperature), survived) for temperature in _CANDIDATES]
    return float(_CANDIDATES[int(np.argmin(misfits))])
