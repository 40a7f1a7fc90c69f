"""How far predicted survivals can be believed: calibration error, ranking and Brier score by position."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from adaverify_contracts import CalibrationError

BINS = 10
# Sums of probabilities are of integers (fixed point): equal rows give equal bits in any order, and 2^29 rows
# stay exact in a float64.
_FRACTION = float(1 << 24)
# One in twenty normal values lies further above the mean than so many standard deviations.
_ONE_IN_TWENTY = 1.645


@dataclass(frozen=True, slots=True)
class Bin:
    """One bin of a reliability diagram: rows, their mean prediction and the share that was accepted."""

    rows: int
    predicted: float
    observed: float


@dataclass(frozen=True, slots=True)
class PositionReliability:
    """The survival of one position against the accepted-prefix mask.

    Attributes:
        position: 1 .. K.
        rows: drafts judged there, reached or not; accepted: those whose prefix was accepted.
        predicted, observed: mean predicted survival and accepted share; None without rows.
        ece: expected calibration error over ten equal bins; None without rows.
        floor: mean of the error that chance gives predictions that are true; None without rows.
        limit: the error that chance exceeds once in twenty when they are true; None without rows.
        auc: probability that an accepted prefix was given more than a refused one, ties half; None when there
            are not both.
        brier: mean squared difference; None without rows.
        bins: those that hold rows, by rising prediction.
    """

    position: int
    rows: int
    accepted: int
    predicted: float | None
    observed: float | None
    ece: float | None
    floor: float | None
    limit: float | None
    auc: float | None
    brier: float | None
    bins: tuple[Bin, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return asdict(self)


def assess(
    survivals: np.ndarray, accepted: np.ndarray, judged: np.ndarray
) -> tuple[PositionReliability, ...]:
    """Return one value a position: predicted survivals against what was accepted.

    Args:
        survivals: float [N, K] in [0, 1], the products of confidences up to each position.
        accepted: int [N], accepted drafts.
        judged: int [N], leading positions that count; the others are left out.

    Raises:
        CalibrationError: a survival is no probability, or lengths disagree.
    """
    if np.ndim(survivals) != 2 or np.shape(accepted) != np.shape(judged) or len(survivals) != len(accepted):
        raise CalibrationError(
            "survivals and outcomes do not fit together",
            arrived=(np.shape(survivals), np.shape(accepted), np.shape(judged)),
            allowed="survivals [N, K], accepted [N] and judged [N]",
            remedy="build them from one list of requests",
        )
    found = []
    for k in range(survivals.shape[1]):
        rows = judged > k
        found.append(_position(k + 1, survivals[rows, k], accepted[rows] > k))
    return tuple(found)


def expected_calibration_error(predicted: np.ndarray, observed: np.ndarray) -> float:
    """Return sum over ten equal bins of (n_b / n) |mean predicted - mean observed|; 0 for no data.

    Args:
        predicted: float [N] in [0, 1].
        observed: bool [N].

    Raises:
        CalibrationError: a prediction is no probability.
    """
    _require_probabilities(predicted)
    if len(predicted) == 0:
        return 0.0
    return misfit(predicted, observed) / _FRACTION / len(predicted)


def misfit(predicted: np.ndarray, observed: np.ndarray) -> float:
    """Return the calibration error times rows times 2^24: an integer, the same in any order of rows."""
    bins = _bins(predicted)
    fixed = np.rint((predicted - observed) * _FRACTION)
    return float(np.abs(np.bincount(bins, fixed, BINS)).sum())


def chance_error(predicted: np.ndarray) -> tuple[float, float]:
    """Return the calibration error of predictions that are true, by chance alone: its mean and its 95 %.

    With labels in finite number each bin misses by a sum of independent draws, nearly normal, whose variance
    is the sum of p (1 - p): the mean of its size is sqrt(2 variance / pi). Draws of one prompt depend on one
    another, so the truth lies above; 0 for no data. A pure function of the rows in any order.

    Args:
        predicted: float [N] in [0, 1].

    Raises:
        CalibrationError: a prediction is no probability.
    """
    _require_probabilities(predicted)
    if len(predicted) == 0:
        return 0.0, 0.0
    fixed = np.rint(predicted * (1.0 - predicted) * _FRACTION)
    variances = np.bincount(_bins(predicted), fixed, BINS) / _FRACTION
    mean = float(np.sqrt(2.0 / math.pi * variances).sum()) / len(predicted)
    spread = math.sqrt((1.0 - 2.0 / math.pi) * float(variances.sum())) / len(predicted)
    return mean, mean + _ONE_IN_TWENTY * spread


def area_under_curve(predicted: np.ndarray, observed: np.ndarray) -> float | None:
    """Return the probability that an observed one was given more than another, ties half; None if all agree.

    Args:
        predicted: float [N]; only its order matters.
        observed: bool [N].
    """
    yes = int(np.count_nonzero(observed))
    no = len(observed) - yes
    if not yes or not no:
        return None
    _, place, counts = np.unique(predicted, return_inverse=True, return_counts=True)
    # Mean rank of each distinct value, from 1.
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place.reshape(-1)]
    return float((ranks[observed].sum() - yes * (yes + 1) / 2) / (yes * no))


def brier_score(predicted: np.ndarray, observed: np.ndarray) -> float | None:
    """Return the mean squared difference of predictions float [N] and outcomes bool [N]; None for no data."""
    return float(np.mean((predicted - observed) ** 2)) if len(predicted) else None


def _position(position: int, predicted: np.ndarray, observed: np.ndarray) -> PositionReliability:
    _require_probabilities(predicted)
    rows, accepted = len(predicted), int(np.count_nonzero(observed))
    floor, limit = chance_error(predicted)
    return PositionReliability(
        position=position,
        rows=rows,
        accepted=accepted,
        predicted=float(predicted.mean()) if rows else None,
        observed=accepted / rows if rows else None,
        ece=expected_calibration_error(predicted, observed) if rows else None,
        floor=floor if rows else None,
        limit=limit if rows else None,
        auc=area_under_curve(predicted, observed),
        brier=brier_score(predicted, observed),
        bins=_diagram(predicted, observed),
    )


def _diagram(predicted: np.ndarray, observed: np.ndarray) -> tuple[Bin, ...]:
    bins = _bins(predicted)
    counts = np.bincount(bins, minlength=BINS)
    sums = np.bincount(bins, predicted, BINS)
    hits = np.bincount(bins, observed, BINS)
    return tuple(
        Bin(int(counts[b]), float(sums[b] / counts[b]), float(hits[b] / counts[b]))
        for b in np.flatnonzero(counts).tolist()
    )


def _bins(predicted: np.ndarray) -> np.ndarray:
    return np.minimum((predicted * BINS).astype(np.int64), BINS - 1)


def _require_probabilities(values: np.ndarray) -> None:
    wrong = values[~((values >= 0.0) & (values <= 1.0))]
    if len(wrong):
        raise CalibrationError(
            "a predicted survival is no probability",
            arrived=float(wrong[0]),
            allowed="numbers in 0 .. 1",
            remedy="judge confidences, not scores",
        )
