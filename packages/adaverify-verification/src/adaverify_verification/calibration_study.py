"""Calibrating on recorded rows and judging it by prompts that it did not see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaverify_contracts import CalibrationError
from adaverify_verification.calibration import MIN_EACH_POSITION, LogisticFit, probabilities
from adaverify_verification.calibration_file import envelope
from adaverify_verification.calibration_offline import IDENTITY, fit_temperatures, survivals
from adaverify_verification.evidence import REGIME_NAMES, Evidence, split
from adaverify_verification.reliability import PositionReliability, assess
from adaverify_verification.signals import CALIBRATED, TEMPERATURE_SCALED

SIGNALS = (TEMPERATURE_SCALED.name, CALIBRATED.name)
# As many labels as the fixed-point sums of a fit hold at the largest scores.
_MOST_LABELS = 200_000


@dataclass(frozen=True, slots=True)
class Study:
    """One regime: what was fitted, and how confidences fared on the prompts held out.

    Attributes:
        regime: ``greedy`` or ``sampled``.
        fitted, held_out: (prompts, rows) of either side.
        parameters: by name, one number a position: ``temperature``, or ``slope`` and ``intercept``.
        positives, negatives: labels a position was fitted to.
        before: with the scores as they are; after: with what was fitted. On the prompts held out.
        learnt: what the signal's ``import_state`` takes for this regime.
    """

    regime: str
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
    if signal not in SIGNALS:
        raise CalibrationError(
            "this signal has nothing to fit offline",
            arrived=signal,
            allowed=", ".join(SIGNALS),
            remedy="choose one of these, or record and fit in a script of your own",
        )
    seen, unseen = split(rows, held_out, seed)
    fit = _temperatures if signal == TEMPERATURE_SCALED.name else _logistic
    parameters, learnt, predicted = fit(seen, unseen)
    positives, negatives = seen.labels()
    raw = survivals(unseen.scores, np.full(rows.draft_tokens, IDENTITY))
    return Study(
        regime=regime,
        fitted=(len(np.unique(seen.keys)), len(seen)),
        held_out=(len(np.unique(unseen.keys)), len(unseen)),
        parameters=parameters,
        positives=tuple(positives.tolist()),
        negatives=tuple(negatives.tolist()),
        before=assess(raw, unseen.accepted, unseen.judged),
        after=assess(predicted, unseen.accepted, unseen.judged),
        learnt=learnt,
    )


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


_Fitted = tuple[dict[str, tuple[float, ...]], dict[str, Any], np.ndarray]


def _temperatures(seen: Evidence, unseen: Evidence) -> _Fitted:
    found = fit_temperatures(seen.scores, seen.accepted, seen.judged, least=MIN_EACH_POSITION)
    positives, negatives = seen.labels()
    learnt = {
        "temperatures": found.tolist(),
        "rows": len(seen),
        "positives": positives.tolist(),
        "negatives": negatives.tolist(),
    }
    return {"temperature": tuple(found.tolist())}, learnt, survivals(unseen.scores, found)


def _logistic(seen: Evidence, unseen: Evidence) -> _Fitted:
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
    predicted = np.cumprod(probabilities(slope, intercepts, unseen.scores), axis=1)
    parameters = {"slope": (slope,) * width, "intercept": tuple(intercepts.tolist())}
    return parameters, fit.export_state(), predicted
