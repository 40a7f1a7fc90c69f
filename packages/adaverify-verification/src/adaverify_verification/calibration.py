"""The online fit of p = sigmoid(w z + b_k) from counted labels (maths section 6).

One slope w >= 0 is shared by all positions, so that deep positions with few labels fit too and the ranking is
never inverted; one intercept b_k belongs to each position. Only sufficient statistics are kept. They are sums
of integers (fixed point), so that equal labels give equal bits whatever order they were counted in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from adaverify_contracts import CalibrationError, StepOutcome

START_SLOPE = 0.0
START_INTERCEPT = 1.5
LOGIT_LIMIT = 40.0
L2 = 1e-3
DAMPING = 50.0

# 16 labelled steps of one request with K = 7 are some 50 labels, as many as the damping counts for.
REFIT_STEPS = 16
# A refit keeps 0.9 of the earlier curvature: 160 labelled steps of memory, so drift is followed within about
# 300.
MEMORY = 0.9
# No refit moves a logit by more than 2: one Newton step from a saturated fit would otherwise leave the data's
# range.
STEP_LIMIT = 2.0
# A position serves its own intercept half and half with the shared one at 32 labels, the readiness minimum.
SHARED_WEIGHT = 32.0
# Newton steps over one recorded set; a logit moves by at most 2 in each, and the last ones move none.
PASSES = 40
# Scores beyond +-1000 count as +-1000: then 2e5 labels of one window fit an int64 at 24 fractional bits.
SCORE_LIMIT = 1000.0
_FRACTION = float(1 << 24)

_NUMBERS = ("slope", "s_ww", "refits")
_REALS = ("remembered", "s_kk", "intercepts", "s_wk")
_COUNTS = ("positives", "negatives", "predicted")

# 32 of each kind put the pooled rate within 0.09 (one standard deviation at worst); each position needs 8 of
# each kind of its own, and leans on the shared intercept beyond them.
MIN_EACH = 32
MIN_EACH_POSITION = 8
# Labels of one kind only are evidence too: after n of them the other kind's rate is below 3 / n (95 %), 0.6 %
# and 2 % here. Without this a drafter that is never accepted would be verified in full for ever.
MIN_ONE_KIND = 512
MIN_ONE_KIND_POSITION = 128


def label_counts(outcome: StepOutcome) -> np.ndarray:
    """Return how many positions of each request carry a label, int64 [R].

    A position has a label when it was admitted and reached: ``min(accepted + 1, admitted)`` of them, the last
    one negative unless everything admitted was accepted. Behind an accepted end token there are none
    (``judged``), nor for requests with ``learn`` False.
    """
    counts = np.minimum(outcome.accepted + 1, outcome.admitted)
    if outcome.judged is not None:
        counts = np.minimum(counts, outcome.judged)
    return np.multiply(counts, outcome.learn, dtype=np.int64)


def readiness(positives: np.ndarray, negatives: np.ndarray) -> tuple[bool, str]:
    """Return whether labels per position, int [K] each, suffice to trim, and the reason in words.

    Every position needs both kinds, or many of one. When so many drafts were verified that a position still
    short is hardly ever reached, it no longer holds up the others.
    """
    total = (int(positives.sum()), int(negatives.sum()))
    if min(total) < MIN_EACH and sum(total) < MIN_ONE_KIND:
        return False, f"all positions: {_words(*total, MIN_EACH, MIN_ONE_KIND)}"
    short = short_positions(positives, negatives)
    if not short:
        return True, "fitted at every position"
    seldom = int(positives[0] + negatives[0]) >= MIN_ONE_KIND
    if short[0] == 1 or not seldom:
        return False, shortage(short[0], positives, negatives)
    named = ", ".join(map(str, short))
    return True, f"fitted; positions {named} have few labels and lean on the shared intercept"


def short_positions(positives: np.ndarray, negatives: np.ndarray) -> tuple[int, ...]:
    """Return the positions, from 1, that have neither 8 labels of each kind nor 128 in all."""
    few = np.minimum(positives, negatives) < MIN_EACH_POSITION
    return tuple((np.flatnonzero(few & (positives + negatives < MIN_ONE_KIND_POSITION)) + 1).tolist())


def shortage(position: int, positives: np.ndarray, negatives: np.ndarray) -> str:
    """Return in words what a position, from 1, has and needs."""
    counts = int(positives[position - 1]), int(negatives[position - 1])
    return f"position {position}: {_words(*counts, MIN_EACH_POSITION, MIN_ONE_KIND_POSITION)}"


def _words(yes: int, no: int, each: int, one_kind: int) -> str:
    return f"{yes} accepted and {no} rejected labels, needs {each} of each or {one_kind} in all"


def probabilities(slope: float, intercepts: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return sigmoid(w z + b) in float64 with the logit held to +-40; shapes broadcast."""
    logits = np.clip(slope * scores + intercepts, -LOGIT_LIMIT, LOGIT_LIMIT)
    return np.asarray(1.0 / (1.0 + np.exp(-logits)))


@dataclass(slots=True)
class _Sums:
    """The statistics of section 6 over one window (int64, fixed point) or over the memory (float64)."""

    s_ww: Any
    s_wk: np.ndarray
    s_kk: np.ndarray
    g_w: Any
    g_k: np.ndarray

    @classmethod
    def zero(cls, draft_tokens: int, kind: type) -> _Sums:
        def vector() -> np.ndarray:
            return np.zeros(draft_tokens, kind)

        return cls(kind(0), vector(), vector(), kind(0), vector())


class LogisticFit:
    """One sampling regime's fit. A pure function of the labels counted and of when they were counted.

    Args:
        draft_tokens: K.
    """

    def __init__(self, draft_tokens: int) -> None:
        self.draft_tokens = draft_tokens
        self.slope = START_SLOPE
        self.intercepts = np.full(draft_tokens, START_INTERCEPT)
        self.refits = 0
        self._positives = np.zeros(draft_tokens, np.int64)
        self._negatives = np.zeros(draft_tokens, np.int64)
        self._predicted = np.zeros(draft_tokens, np.int64)
        self._memory = _Sums.zero(draft_tokens, np.float64)
        self._remembered = np.zeros(draft_tokens)
        # Asked in every plan, and so found when labels are counted. They only grow in number: a fit that is
        # ready stays so, and its words wait for the next refit.
        self._readiness = (False, "")
        self._reset_window()

    @property
    def positives(self) -> np.ndarray:
        """How many labels of each position said accepted, int64 [K]."""
        self._add_up()
        return self._positives

    @property
    def negatives(self) -> np.ndarray:
        """How many labels of each position said rejected, int64 [K]."""
        self._add_up()
        return self._negatives

    @property
    def predicted(self) -> np.ndarray:
        """Sum of the probabilities that the labels were given, int64 [K] with 24 fractional bits."""
        self._add_up()
        return self._predicted

    def _reset_window(self) -> None:
        self._window = _Sums.zero(self.draft_tokens, np.int64)
        self._window_labels = np.zeros(self.draft_tokens, np.int64)
        self._window_steps = 0
        # What was counted and not yet added up: scores, labelled, accepted.
        self._waiting: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def count(self, scores: np.ndarray, labelled: np.ndarray, accepted: np.ndarray) -> bool:
        """Count one step's labels; refit after every 16th step counted and return whether that happened.

        A step without labels counts too: a window must end even when every slot has had its share.

        Args:
            scores: float [N, K], raw; labels of scores that are not numbers are skipped. Copied.
            labelled: bool [N, K]; kept, and not to be written to again.
            accepted: bool [N, K], read where ``labelled``; kept likewise.
        """
        self._waiting.append((scores.copy(), labelled, accepted))
        self._window_steps += 1
        if self._window_steps == REFIT_STEPS:
            self.refit()
            return True
        if self.refits and not self._readiness[0]:
            self._readiness = readiness(self.positives, self.negatives)
        return False

    def _add_up(self) -> None:
        """Add up the labels that wait: the fit is the same for all of a window, so one pass does for all."""
        if not self._waiting:
            return
        scores, labelled, accepted = (np.concatenate(parts) for parts in zip(*self._waiting, strict=True))
        self._waiting.clear()
        labelled &= ~np.isnan(scores)
        yes = labelled & accepted
        labels = labelled.sum(axis=0, dtype=np.int64)
        positives = yes.sum(axis=0, dtype=np.int64)
        self._positives += positives
        self._negatives += labels - positives
        self._window_labels += labels
        # NaN only where not labelled; anything finite will do there.
        z = np.clip(np.where(labelled, scores, 0.0).astype(np.float64), -SCORE_LIMIT, SCORE_LIMIT)
        p = probabilities(self.slope, self.intercepts, z)
        curvature = np.where(labelled, p * (1.0 - p), 0.0)
        error = np.where(labelled, yes - p, 0.0)
        window = self._window
        window.s_ww += _fixed(curvature * z * z).sum()
        window.s_wk += _fixed(curvature * z).sum(axis=0)
        window.s_kk += _fixed(curvature).sum(axis=0)
        window.g_w += _fixed(error * z).sum()
        window.g_k += _fixed(error).sum(axis=0)
        self._predicted += _fixed(np.where(labelled, p, 0.0)).sum(axis=0)

    def refit(self) -> None:
        """Take one damped Newton step in arrowhead form: the window's gradient, the memory's curvature."""
        self._add_up()
        window, memory = self._window, self._memory
        memory.s_ww = MEMORY * memory.s_ww + window.s_ww / _FRACTION
        memory.s_wk = MEMORY * memory.s_wk + window.s_wk / _FRACTION
        memory.s_kk = MEMORY * memory.s_kk + window.s_kk / _FRACTION
        self._remembered = MEMORY * self._remembered + self._window_labels
        labels = float(self._remembered.sum())

        s_ww, s_wk, s_kk = memory.s_ww + L2, memory.s_wk, memory.s_kk + L2
        g_w = window.g_w / _FRACTION - L2 * (self.slope - START_SLOPE)
        g_k = window.g_k / _FRACTION - L2 * (self.intercepts - START_INTERCEPT)
        # The Schur complement is positive but for rounding; L2 is its floor by construction.
        schur = max(s_ww - float((s_wk * s_wk / s_kk).sum()), L2)
        step = (g_w - float((s_wk * g_k / s_kk).sum())) / schur
        spread = float(np.sqrt(s_ww / max(float(s_kk.sum()), L2)))
        limit = STEP_LIMIT / max(spread, 1e-6)
        step = float(np.clip(step, -limit, limit)) * labels / (labels + DAMPING)
        step = max(self.slope + step, 0.0) - self.slope
        shifts = np.clip((g_k - s_wk * step) / s_kk, -STEP_LIMIT, STEP_LIMIT)
        self.slope += step
        self.intercepts = self.intercepts + shifts * self._remembered / (self._remembered + DAMPING)
        self.refits += 1
        self._reset_window()
        self._readiness = readiness(self.positives, self.negatives)

    def fit_to(self, scores: np.ndarray, labelled: np.ndarray, accepted: np.ndarray) -> None:
        """Fit to one recorded set of labels until it stays; whatever was learnt before is replaced.

        Args:
            scores: float [N, K], raw; labels of scores that are not numbers are skipped.
            labelled: bool [N, K].
            accepted: bool [N, K], read where ``labelled``.
        """
        for _ in range(PASSES):
            self._memory = _Sums.zero(self.draft_tokens, np.float64)
            self._remembered = np.zeros(self.draft_tokens)
            self._reset_window()
            self._positives[:] = self._negatives[:] = self._predicted[:] = 0
            self.count(scores, labelled, accepted)
            self.refit()
        self.refits = 1

    def served(self) -> tuple[float, np.ndarray]:
        """Return the slope and the intercepts float64 [K] to use; few labels lean on the shared intercept."""
        total = float(self._remembered.sum())
        if total == 0.0:
            return self.slope, self.intercepts.copy()
        shared = float((self._remembered * self.intercepts).sum()) / total
        weight = self._remembered / (self._remembered + SHARED_WEIGHT)
        return self.slope, weight * self.intercepts + (1.0 - weight) * shared

    def ready(self) -> tuple[bool, str]:
        """Return whether the fit may drive trimming, and the reason in words."""
        if self.refits == 0:
            return False, f"no fit yet: {self._window_steps} of {REFIT_STEPS} labelled steps"
        return self._readiness

    def reliability(self) -> list[dict[str, float | int | None]]:
        """Return one row a position: labels, mean predicted and observed acceptance."""
        rows: list[dict[str, float | int | None]] = []
        for k in range(self.draft_tokens):
            labels = int(self.positives[k] + self.negatives[k])
            predicted = float(self.predicted[k]) / _FRACTION / labels if labels else None
            observed = int(self.positives[k]) / labels if labels else None
            rows.append({"position": k + 1, "labels": labels, "predicted": predicted, "observed": observed})
        return rows

    def export_state(self) -> dict[str, Any]:
        """Return everything learnt as JSON-ready values; labels of the open window are left out."""
        memory = self._memory
        return {
            "slope": self.slope,
            "intercepts": self.intercepts.tolist(),
            "refits": self.refits,
            "positives": self.positives.tolist(),
            "negatives": self.negatives.tolist(),
            "predicted": self.predicted.tolist(),
            "remembered": self._remembered.tolist(),
            "s_ww": float(memory.s_ww),
            "s_wk": memory.s_wk.tolist(),
            "s_kk": memory.s_kk.tolist(),
        }

    def import_state(self, state: dict[str, Any]) -> None:
        """Replace everything learnt by ``state``.

        Raises:
            CalibrationError: a field is missing, not finite, negative where it counts, or not of length K.
                Nothing is changed then.
        """
        try:
            numbers = np.array([state[name] for name in _NUMBERS], np.float64)
            reals = np.array([state[name] for name in _REALS], np.float64)
            counts = np.array([state[name] for name in _COUNTS], np.int64)
        except (KeyError, TypeError, ValueError, OverflowError) as cause:
            raise CalibrationError(
                "saved calibration is malformed",
                arrived=repr(cause),
                allowed="what export_state returned",
                remedy="delete the file; the signal calibrates itself again",
            ) from cause
        width = self.draft_tokens
        fits = reals.shape == (len(_REALS), width) and counts.shape == (len(_COUNTS), width)
        # Intercepts and s_wk may have either sign; they come last.
        fits = fits and bool(np.isfinite(numbers).all() and np.isfinite(reals).all())
        if not fits or min(numbers.min(), reals[:2].min(initial=0), counts.min(initial=0)) < 0:
            raise CalibrationError(
                "saved calibration does not fit this signal",
                arrived={"reals": reals.shape, "counts": counts.shape},
                allowed=f"finite values, K = {width} of each, slope, curvature and counts >= 0",
                remedy="delete the file, or run with the K it was saved for",
            )
        self.slope, self._memory.s_ww, self.refits = float(numbers[0]), numbers[1], int(numbers[2])
        self._remembered, self._memory.s_kk, self.intercepts, self._memory.s_wk = reals
        self._positives, self._negatives, self._predicted = counts
        self._readiness = readiness(self._positives, self._negatives)
        self._reset_window()


def _fixed(values: np.ndarray) -> np.ndarray:
    return np.rint(values * _FRACTION).astype(np.int64)
