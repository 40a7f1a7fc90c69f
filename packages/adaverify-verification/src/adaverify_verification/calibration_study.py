"""Calibrating on recorded rows and judging it by prompts that it did not see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaverify_contracts import CalibrationError
from adaverify_verification.calibration import MIN_EACH_POSITION, LogisticFit, probabilities
from adaverify_verification.calibration_file import envelope
from adaverify_verification.calibration_offline import IDENTITY, fit_temperatures, survivals
from adaverify_verification.evidence import REGIME_NAMES, Evidence, fold_of, split
from adaverify_verification.reliability import PositionReliability, assess
from adaverify_verification.signals import CALIBRATED, TEMPERATURE_SCALED

SIGNALS = (TEMPERATURE_SCALED.name, CALIBRATED.name)
FOLDS = 5
"""Fits of a cross study: each sees four fifths of the prompts."""
# As many labels as the fixed-point sums of a fit hold at the largest scores.
_MOST_LABELS = 200_000


@dataclass(frozen=True, slots=True)
class Study:
    """One regime: what was fitted, and how confidences fared on the prompts held out.

    Attributes:
        regime: ``greedy`` or ``sampled``.
        folds: 1 where some prompts were held out of one fit; else the fits, each judged by the prompts that
            it did not see, all of them together.
        fitted, held_out: (prompts, rows) of either side.
        parameters: by name, one number a position: ``temperature``, or ``slope`` and ``intercept``.
        positives, negatives: labels a position was fitted to.
        before: with the scores as they are; after: with what was fitted. On the prompts held out.
        learnt: what the signal's ``import_state`` takes for this regime.
    """

    regime: str
    folds: int
    fitted: tuple[int, int]
    held_out: tuple[int, int]
    parameters: Mapping[str, tuple[float, ...]]
    positives: tuple[int, ...]
    negatives: tuple[int, ...]
    before: tuple[PositionReliability, ...]
    after: tuple[PositionReliability, ...]
    learnt: dict[str, Any]

    @property
    def short(self) -> tuple[int, ...]:
        """Positions with fewer than eight labels of either kind: hardly fitted."""
        counts = enumerate(zip(self.positives, self.negatives, strict=True), 1)
        return tuple(position for position, pair in counts if min(pair) < MIN_EACH_POSITION)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        sides = {"fitted": self.fitted, "held_out": self.held_out}
        return {
            "folds": self.folds,
            **{name: {"prompts": side[0], "rows": side[1]} for name, side in sides.items()},
            "short": list(self.short),
            "positions": [
                {
                    "position": k + 1,
                    **{name: values[k] for name, values in self.parameters.items()},
                    "labels": {"accepted": self.positives[k], "rejected": self.negatives[k]},
                    "before": before.as_dict(),
                    "after": after.as_dict(),
                }
                for k, (before, after) in enumerate(zip(self.before, self.after, strict=True))
            ],
        }


def study(
    regime: str, rows: Evidence, signal: str = SIGNALS[0], *, held_out: float = 0.3, seed: int = 0
) -> Study:
    """Fit one regime on some prompts and judge it by the others; a pure function of the rows.

    Args:
        regime: ``greedy`` or ``sampled``.
        rows: of that regime.
        signal: ``temperature-scaled`` or ``calibrated``, whose parameters are fitted.
        held_out: share of the prompts to judge by.
        seed: chooses another split.

    Raises:
        CalibrationError: fewer than two prompts, or a signal that has nothing to fit.
    """
    fit = _fit_of(signal)
    seen, unseen = split(rows, held_out, seed)
    fitted = fit(seen)
    return _judged(regime, 1, seen, unseen, fitted, fitted.survivals(unseen.scores))


def cross_study(
    regime: str, rows: Evidence, signal: str = SIGNALS[0], *, folds: int = FOLDS, seed: int = 0
) -> Study:
    """Fit one regime on all prompts, and judge every prompt by a fit that did not see it.

    Prompts are dealt into folds; each fold is predicted by a fit to the others, and all predictions are
    judged together. So every label counts on both sides and never in both roles at once. What is kept is the
    fit to all of them, which saw a little more than those that were judged. A pure function of the rows.

    Args:
        regime: ``greedy`` or ``sampled``.
        rows: of that regime.
        signal: ``temperature-scaled`` or ``calibrated``, whose parameters are fitted.
        folds: at least 2; one prompt each where there are fewer prompts.
        seed: chooses another deal.

    Raises:
        CalibrationError: fewer than two prompts or folds, or a signal that has nothing to fit.
    """
    fit = _fit_of(signal)
    fold = fold_of(rows, folds, seed)
    predicted = np.empty(rows.scores.shape)
    for number in range(int(fold.max()) + 1):
        out = fold == number
        predicted[out] = fit(rows.take(~out)).survivals(rows.scores[out])
    return _judged(regime, int(fold.max()) + 1, rows, rows, fit(rows), predicted)


def calibration_state(
    studies: Mapping[str, Study], signal: str, fingerprint: str, draft_tokens: int
) -> dict[str, Any]:
    """Return what the signal's ``import_state`` takes; regimes that were not studied start cold.

    Args:
        studies: by regime.
        signal: that they were made for.
        fingerprint: ``calibration_subject`` of target and drafter.
        draft_tokens: K.
    """
    cold = None if signal == TEMPERATURE_SCALED.name else LogisticFit(draft_tokens).export_state()
    learnt = {name: studies[name].learnt if name in studies else cold for name in REGIME_NAMES}
    return envelope(signal, fingerprint, draft_tokens, learnt)


@dataclass(frozen=True, slots=True)
class _Fitted:
    """Parameters by name, what the signal imports, and survivals float64 [N, K] of scores [N, K]."""

    parameters: dict[str, tuple[float, ...]]
    learnt: dict[str, Any]
    survivals: Callable[[np.ndarray], np.ndarray]


def _fit_of(signal: str) -> Callable[[Evidence], _Fitted]:
    if signal not in SIGNALS:
        raise CalibrationError(
            "this signal has nothing to fit offline",
            arrived=signal,
            allowed=", ".join(SIGNALS),
            remedy="choose one of these, or record and fit in a script of your own",
        )
    return _temperatures if signal == TEMPERATURE_SCALED.name else _logistic


def _judged(
    regime: str, folds: int, seen: Evidence, unseen: Evidence, fitted: _Fitted, predicted: np.ndarray
) -> Study:
    positives, negatives = seen.labels()
    raw = survivals(unseen.scores, np.full(unseen.draft_tokens, IDENTITY))
    return Study(
        regime=regime,
        folds=folds,
        fitted=(len(np.unique(seen.keys)), len(seen)),
        held_out=(len(np.unique(unseen.keys)), len(unseen)),
        parameters=fitted.parameters,
        positives=tuple(positives.tolist()),
        negatives=tuple(negatives.tolist()),
        before=assess(raw, unseen.accepted, unseen.judged),
        after=assess(predicted, unseen.accepted, unseen.judged),
        learnt=fitted.learnt,
    )


def _temperatures(seen: Evidence) -> _Fitted:
    found = fit_temperatures(seen.scores, seen.accepted, seen.judged, least=MIN_EACH_POSITION)
    positives, negatives = seen.labels()
    learnt = {
        "temperatures": found.tolist(),
        "rows": len(seen),
        "positives": positives.tolist(),
        "negatives": negatives.tolist(),
    }
    return _Fitted({"temperature": tuple(found.tolist())}, learnt, lambda scores: survivals(scores, found))


def _logistic(seen: Evidence) -> _Fitted:
    width = seen.draft_tokens
    stride = -(-len(seen) * width // _MOST_LABELS)
    some = seen.take(np.arange(len(seen)) % stride == 0)
    position = np.arange(width)
    fit = LogisticFit(width)
    fit.fit_to(
        some.scores,
        position < np.minimum(some.accepted + 1, some.judged)[:, None],
        position < some.accepted[:, None],
    )
    slope, intercepts = fit.served()
    parameters = {"slope": (slope,) * width, "intercept": tuple(intercepts.tolist())}

    def predict(scores: np.ndarray) -> np.ndarray:
        return np.cumprod(probabilities(slope, intercepts, scores), axis=1)

    return _Fitted(parameters, fit.export_state(), predict)
