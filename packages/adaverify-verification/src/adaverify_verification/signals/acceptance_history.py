"""Acceptance so far, per position and per request: a signal that needs no scores and sees history only."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from adaverify_contracts import CalibrationError, Limits, StepOutcome
from adaverify_verification.calibration import START_INTERCEPT, label_counts, readiness
from adaverify_verification.calibration_file import envelope, learnt_of
from adaverify_verification.signals.buffers import SignalBuffers
from adaverify_verification.signals.slots import GREEDY, REGIMES, SAMPLED, UNKNOWN, SlotBook

NAME = "acceptance-history"
PRIOR = float(1.0 / (1.0 + np.exp(-START_INTERCEPT)))
# Global rates remember about 200 labelled steps, a request's own about 10: text changes faster than traffic.
GLOBAL_MEMORY = 0.995
SLOT_MEMORY = 0.9
# A request's own rate counts half at 4 labels, a position's at 32 (the readiness minimum).
SLOT_PRIOR = 4.0
GLOBAL_PRIOR = 32.0


class AcceptanceHistorySignal:
    """Confidence (accepted + 4 g_k) / (labels + 4) of the slot; g_k is its regime's rate at position k.

    Pooled rates of positions that were trimmed are biased upwards (maths M11): a request's own rate
    conditions on what drove its admission, the global rate does not.

    Args:
        limits: sizes; slots are numbered 0 .. max_requests - 1.
        device: run device.
    """

    def __init__(self, limits: Limits, device: torch.device) -> None:
        rows, width = limits.max_requests, limits.draft_tokens
        self._buffers = SignalBuffers(limits, device)
        self._book = SlotBook(rows)
        self._width = width
        self._accepted = np.zeros((len(REGIMES), width))
        self._labels = np.zeros((len(REGIMES), width))
        self._positives = np.zeros((len(REGIMES), width), np.int64)
        self._negatives = np.zeros((len(REGIMES), width), np.int64)
        # One row more than slots: requests without a slot keep the prior.
        self._slot_accepted = np.zeros((rows + 1, width))
        self._slot_labels = np.zeros((rows + 1, width))
        self._table = torch.zeros(rows + 1, width, dtype=torch.float32, device=device)
        self._upload()

    def confidences(self, scores: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Return the slots' rows of the table, float32 [R, K], in a static buffer. Capturable."""
        out = self._buffers.output(scores, slots)
        return torch.index_select(self._table, 0, self._buffers.rows_of(slots), out=out)

    def learn(self, outcome: StepOutcome) -> None:
        """Count the labels of admitted and reached positions, for the regime and for the slot."""
        current, renewed = self._book.observe(outcome)
        self._slot_accepted[renewed] = self._slot_labels[renewed] = 0.0
        position = np.arange(self._width)
        counts = np.where(self._book.known(outcome.slots), label_counts(outcome), 0)
        labelled = position < counts[:, None]
        yes = labelled & (position < outcome.accepted[:, None])
        for regime in (GREEDY, SAMPLED):
            mine = outcome.sampled == (regime == SAMPLED)
            labels, accepted = labelled[mine].sum(axis=0), yes[mine].sum(axis=0)
            if labels.any():
                self._labels[regime] = GLOBAL_MEMORY * self._labels[regime] + labels
                self._accepted[regime] = GLOBAL_MEMORY * self._accepted[regime] + accepted
                self._positives[regime] += accepted
                self._negatives[regime] += labels - accepted
        rows = current & labelled.any(axis=1)
        slots = outcome.slots[rows]
        self._slot_labels[slots] = SLOT_MEMORY * self._slot_labels[slots] + labelled[rows]
        self._slot_accepted[slots] = SLOT_MEMORY * self._slot_accepted[slots] + yes[rows]
        self._upload()

    def forget(self, slot: int) -> None:
        """Return the slot to the prior; what the request taught the global rates stays."""
        if self._book.forget(slot):
            self._slot_accepted[slot] = self._slot_labels[slot] = 0.0
            self._upload(slice(slot, slot + 1))

    def ready(self) -> tuple[bool, str]:
        """Return whether every regime of recent requests has enough labels; with none, whether any has."""
        counts = zip(self._positives, self._negatives, strict=True)
        answers = {regime: readiness(yes, no) for regime, (yes, no) in enumerate(counts)}
        del answers[UNKNOWN]
        return self._book.ready(answers)

    def rates(self) -> np.ndarray:
        """Return g, float64 [3, K]: the prior, greedy and sampled conditional acceptance per position."""
        pooled = (self._accepted.sum(axis=1) + GLOBAL_PRIOR * PRIOR) / (
            self._labels.sum(axis=1) + GLOBAL_PRIOR
        )
        return np.asarray((self._accepted + GLOBAL_PRIOR * pooled[:, None]) / (self._labels + GLOBAL_PRIOR))

    def export_state(self, fingerprint: str) -> dict[str, Any]:
        """Return the global rates' counts, JSON-ready; requests are not exported."""
        learnt = {
            "accepted": self._accepted.tolist(),
            "labels": self._labels.tolist(),
            "positives": self._positives.tolist(),
            "negatives": self._negatives.tolist(),
        }
        return envelope(NAME, fingerprint, self._width, learnt)

    def import_state(self, state: object, fingerprint: str) -> None:
        """Continue from what ``export_state`` returned.

        Raises:
            CalibrationError: malformed, or saved under another signal, fingerprint or K. Nothing is changed
                then.
        """
        learnt = learnt_of(state, NAME, fingerprint, self._width)
        shape = (len(REGIMES), self._width)
        try:
            accepted, labels = (np.array(learnt[name], np.float64) for name in ("accepted", "labels"))
            positives, negatives = (np.array(learnt[name], np.int64) for name in ("positives", "negatives"))
            tables = (accepted, labels, positives, negatives)
            fits = all(table.shape == shape and np.isfinite(table).all() for table in tables)
            fits = fits and all((table >= 0).all() for table in tables) and bool((accepted <= labels).all())
        except (KeyError, TypeError, ValueError, OverflowError):
            fits = False
        if not fits:
            raise CalibrationError(
                "saved acceptance history is malformed",
                arrived=sorted(learnt),
                allowed=f"four tables of shape {shape}, finite and not negative, accepted <= labels",
                remedy="delete the file; the signal learns again",
            )
        self._accepted, self._labels = accepted, labels
        self._positives, self._negatives = positives, negatives
        self._upload()

    def _upload(self, rows: slice = slice(None)) -> None:
        # From pageable memory and not blocking: enqueued without a host wait, and the source may change at
        # once.
        rates = self.rates()[self._book.regime[rows]]
        table = (self._slot_accepted[rows] + SLOT_PRIOR * rates) / (self._slot_labels[rows] + SLOT_PRIOR)
        self._table[rows].copy_(torch.from_numpy(table.astype(np.float32)), non_blocking=True)
