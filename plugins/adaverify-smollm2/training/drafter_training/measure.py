"""Numbers about drafts and confidences: accepted length, AUC, calibration error, temperatures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BINS = 15
_GRID = np.exp(np.linspace(np.log(0.25), np.log(4.0), 161))


@dataclass(frozen=True, slots=True)
class Steps:
    """Verification steps of a run with full blocks.

    Attributes:
        accepted: int [n], accepted drafts of a step.
        emitted: int [n], accepted plus bonus; without bonus where the accepted drafts end the sequence.
        horizon: int [n], drafts whose fate the sequence tells: those up to its stop token.
        logits: float [n, K], confidence logits.
        group: int [n], which prompt.
    """

    accepted: np.ndarray
    emitted: np.ndarray
    horizon: np.ndarray
    logits: np.ndarray
    group: np.ndarray

    @classmethod
    def join(cls, parts: list[Steps]) -> Steps:
        """Return all steps of ``parts``."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))

    def take(self, rows: np.ndarray) -> Steps:
        """Return some steps."""
        return Steps(*(getattr(self, name)[rows] for name in self.__slots__))

    @property
    def accepted_length(self) -> float:
        """Mean tokens emitted by a step."""
        return float(self.emitted.mean())


def walk(
    drafts: np.ndarray, logits: np.ndarray, tokens: np.ndarray, first: int, last: int, group: int
) -> Steps:
    """Return the steps an engine takes over one sequence, from drafts made at every position.

    Args:
        drafts: int [P, K]; row i was drafted with position ``first + i`` as the newest token.
        logits: float [P, K].
        tokens: int [T], the sequence the target wrote.
        first: position of the first token written, which the prompt's pass gives and no step.
        last: position of the last token written.
        group: number of the prompt.
    """
    block = drafts.shape[1]
    rows: list[tuple[int, int, int, int]] = []
    at = first
    while at < last and at - first < len(drafts):
        row = at - first
        horizon = min(block, last - at)
        match = drafts[row, :horizon] == tokens[at + 1 : at + 1 + horizon]
        count = horizon if match.all() else int(match.argmin())
        emitted = min(count + 1, last - at)
        rows.append((row, count, emitted, horizon))
        at += emitted
    found = np.array(rows, np.int64).reshape(-1, 4)
    return Steps(found[:, 1], found[:, 2], found[:, 3], logits[found[:, 0]], np.full(len(found), group))


def survival(logits: np.ndarray, temperatures: np.ndarray | None = None) -> np.ndarray:
    """Return cumulative products [n, K] of the confidences."""
    scaled = logits if temperatures is None else logits / temperatures
    return np.cumprod(1 / (1 + np.exp(-np.clip(scaled, -40, 40))), axis=1)


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return P(score of a positive > score of a negative), ties counted half; NaN without both."""
    positives = int(labels.sum())
    negatives = len(labels) - positives
    if not positives or not negatives:
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return float((ranks[inverse][labels].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def calibration_error(predicted: np.ndarray, labels: np.ndarray, bins: int = BINS) -> float:
    """Return the expected calibration error over equal-width bins."""
    index = np.minimum((predicted * bins).astype(int), bins - 1)
    count = np.bincount(index, minlength=bins)
    gap = np.abs(np.bincount(index, predicted, bins) - np.bincount(index, labels.astype(float), bins))
    return float(gap.sum() / max(count.sum(), 1))


def fit_temperatures(steps: Steps) -> np.ndarray:
    """Return T_1..T_K by sequential temperature scaling.

    Left to right, the ones before frozen, each T_k minimises the calibration error of the cumulative product
    up to k against the accepted-prefix bit.
    """
    block = steps.logits.shape[1]
    temperatures = np.ones(block)
    for k in range(block):
        rows = steps.horizon > k
        labels = steps.accepted[rows] > k
        before = survival(steps.logits[rows, :k], temperatures[:k])[:, -1] if k else 1.0
        here = steps.logits[rows, k]
        errors = [
            calibration_error(before / (1 + np.exp(-np.clip(here / value, -40, 40))), labels)
            for value in _GRID
        ]
        temperatures[k] = _GRID[int(np.argmin(errors))]
    return temperatures


def report(steps: Steps, temperatures: np.ndarray) -> dict[str, object]:
    """Return everything a card says of one set of steps, positions from 1 in order."""
    raw, mended = survival(steps.logits), survival(steps.logits, temperatures)
    block = raw.shape[1]
    known = [steps.horizon > k for k in range(block)]
    labels = [steps.accepted[rows] > k for k, rows in enumerate(known)]

    def each(call: object, scores: np.ndarray) -> list[float]:
        return [round(float(call(scores[known[k], k], labels[k])), 4) for k in range(block)]  # type: ignore[operator]

    def brier(scores: np.ndarray, bits: np.ndarray) -> float:
        return float(((scores - bits) ** 2).mean())

    return {
        "steps": len(steps.accepted),
        "accepted_length": round(steps.accepted_length, 4),
        "survival": [round(float(bits.mean()), 4) for bits in labels],
        "auc": each(auc, raw),
        "auc_calibrated": each(auc, mended),
        "ece_raw": each(calibration_error, raw),
        "ece": each(calibration_error, mended),
        "brier": each(brier, mended),
    }
