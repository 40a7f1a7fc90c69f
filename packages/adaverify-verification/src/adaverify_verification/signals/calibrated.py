"""The default signal: the drafter's scores through a logistic fit that follows what is really accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from adaverify_contracts import Limits, StepOutcome
from adaverify_verification.calibration import (
    LOGIT_LIMIT,
    SCORE_LIMIT,
    START_INTERCEPT,
    START_SLOPE,
    LogisticFit,
    label_counts,
)
from adaverify_verification.calibration_file import envelope, learnt_of
from adaverify_verification.signals.buffers import SignalBuffers
from adaverify_verification.signals.slots import GREEDY, REGIMES, SAMPLED, SlotBook

NAME = "calibrated"
# A slot that has given 64 labels to the open window gives no more until the refit: with 16 steps and K = 7 a
# slot has at most 112, and one request should not outweigh a batch.
LABELS_PER_SLOT = 64


class CalibratedSignal:
    """Confidence sigmoid(w z_k + b_k), fitted online, greedy apart from sampled (maths section 6).

    A request whose regime is not known yet (its first step) gets the prior w = 0, b = 1.5. The device reads
    two static tables; ``learn`` overwrites them in stream order, from pageable memory, which enqueues without
    a host wait.

    Args:
        limits: sizes; slots are numbered 0 .. max_requests - 1.
        device: run device.
    """

    def __init__(self, limits: Limits, device: torch.device) -> None:
        rows, width = limits.max_requests, limits.draft_tokens
        self._buffers = SignalBuffers(limits, device)
        self._fits = {regime: LogisticFit(width) for regime in (GREEDY, SAMPLED)}
        self._book = SlotBook(rows)
        self._used = {regime: np.zeros(rows, np.int64) for regime in self._fits}
        self._width = width
        self._position = np.arange(width)
        # Row = regime, column 0 the slope, then the intercepts.
        self._parameters = torch.zeros(len(REGIMES), width + 1, dtype=torch.float32, device=device)
        self._regime_of_slot = torch.zeros(rows + 1, dtype=torch.int64, device=device)
        self._regimes = torch.zeros(rows, dtype=torch.int64, device=device)
        self._gathered = torch.zeros(rows, width + 1, dtype=torch.float32, device=device)
        self._upload_parameters()

    def confidences(self, scores: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Return sigmoid(w z + b), float32 [R, K], in a static buffer; a NaN score gives 0. Capturable."""
        out = self._buffers.output(scores, slots)
        requests = scores.shape[0]
        regimes, gathered = self._regimes[:requests], self._gathered[:requests]
        torch.index_select(self._regime_of_slot, 0, self._buffers.rows_of(slots), out=regimes)
        torch.index_select(self._parameters, 0, regimes, out=gathered)
        torch.clamp(scores, -SCORE_LIMIT, SCORE_LIMIT, out=out)
        torch.addcmul(gathered[:, 1:], out, gathered[:, :1], out=out)
        return out.clamp_(-LOGIT_LIMIT, LOGIT_LIMIT).sigmoid_().nan_to_num_(nan=0.0)

    def learn(self, outcome: StepOutcome) -> None:
        """Count the labels of admitted and reached positions; refit a regime every 16th labelled step."""
        changes = self._book.changes
        self._book.observe(outcome)
        if self._book.changes != changes:
            self._upload_regimes()
        accepted = self._position < outcome.accepted[:, None]
        refitted = False
        for regime, counts in _by_regime(outcome.sampled, label_counts(outcome)):
            if not np.count_nonzero(counts):
                continue
            mine = self._bound(self._used[regime], outcome.slots, counts)
            if self._fits[regime].count(outcome.scores, self._position < mine[:, None], accepted):
                self._used[regime][:] = 0
                refitted = True
        if refitted:
            self._upload_parameters()

    def forget(self, slot: int) -> None:
        """Forget the slot's regime; what the request taught the fit stays."""
        if self._book.forget(slot):
            self._upload_regimes()

    def ready(self) -> tuple[bool, str]:
        """Return whether every regime of recent requests is fitted; with none, whether any is."""
        return self._book.ready({regime: fit.ready() for regime, fit in self._fits.items()})

    def reliability(self) -> dict[str, list[dict[str, float | int | None]]]:
        """Return, for each regime, one row a position: labels, mean predicted and observed acceptance."""
        return {REGIMES[regime]: fit.reliability() for regime, fit in self._fits.items()}

    def export_state(self, fingerprint: str) -> dict[str, Any]:
        """Return what was learnt, JSON-ready; ``fingerprint`` names the target and drafter it belongs to."""
        learnt = {REGIMES[regime]: fit.export_state() for regime, fit in self._fits.items()}
        return envelope(NAME, fingerprint, self._width, learnt)

    def import_state(self, state: object, fingerprint: str) -> None:
        """Continue from what ``export_state`` returned.

        Raises:
            CalibrationError: malformed, or saved under another signal, fingerprint or K. Nothing is changed
                then.
        """
        learnt = learnt_of(state, NAME, fingerprint, self._width)
        fits = {regime: LogisticFit(self._width) for regime in self._fits}
        for regime, fit in fits.items():
            fit.import_state(learnt.get(REGIMES[regime], {}))
        self._fits = fits
        for used in self._used.values():
            used[:] = 0
        self._upload_parameters()

    def _bound(self, used: np.ndarray, slots: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Drop whole runs of slots that had their share; cutting inside a run would drop rejections only."""
        if self._book.strangers:
            counts = np.where(self._book.known(slots), counts, 0)
            slots = np.where(counts > 0, slots, 0)
        counts = counts * (used[slots] < LABELS_PER_SLOT)
        np.add.at(used, slots, counts)
        return counts

    def _upload_parameters(self) -> None:
        table = np.empty((len(REGIMES), self._width + 1))
        table[:, 0], table[:, 1:] = START_SLOPE, START_INTERCEPT
        for regime, fit in self._fits.items():
            table[regime, 0], table[regime, 1:] = fit.served()
        self._parameters.copy_(torch.from_numpy(table.astype(np.float32)), non_blocking=True)

    def _upload_regimes(self) -> None:
        self._regime_of_slot.copy_(torch.from_numpy(self._book.regime), non_blocking=True)


def _by_regime(sampled: np.ndarray, counts: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Return the label counts int64 [R] of each regime that is in the batch, 0 for the other's requests."""
    number = np.count_nonzero(sampled)
    if number in (0, len(sampled)):
        return [(SAMPLED if number else GREEDY, counts)]
    return [(GREEDY, np.where(sampled, 0, counts)), (SAMPLED, np.where(sampled, counts, 0))]
