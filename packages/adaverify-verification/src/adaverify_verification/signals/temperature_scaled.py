"""The drafter's scores as logits, divided by a temperature a position: sequential temperature scaling."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from adaverify_contracts import Limits, StepOutcome
from adaverify_verification.calibration_file import envelope, learnt_of
from adaverify_verification.evidence import Evidence
from adaverify_verification.signals.buffers import SignalBuffers
from adaverify_verification.signals.slots import GREEDY, REGIMES, SAMPLED, UNKNOWN, SlotBook
from adaverify_verification.temperature_fit import TemperatureFit
from adaverify_verification.temperature_vector import temperatures_of

NAME = "temperature-scaled"
# A request gives no more rows than this to its regime's fit: one long text should not stand for all.
ROWS_PER_REQUEST = 256


class TemperatureScaledSignal:
    """Confidence sigmoid(z_k / T_k), greedy apart from sampled (maths section 6, STS).

    Temperatures come from a file (``import_state``), or are fitted to the steps that verified everything, as
    the first ones do: until then T = 1 and the signal is not ready. They keep the order within one position,
    do not follow drift and have no bias term; ``calibrated`` does and has. A request whose regime is not
    known yet (its first step) gets the geometric mean of the regimes that have temperatures.

    Args:
        limits: sizes; slots are numbered 0 .. max_requests - 1.
        device: run device.
    """

    def __init__(self, limits: Limits, device: torch.device) -> None:
        rows, width = limits.max_requests, limits.draft_tokens
        self._buffers = SignalBuffers(limits, device)
        self._fits = {regime: TemperatureFit(width) for regime in (GREEDY, SAMPLED)}
        self._book = SlotBook(rows)
        self._used = np.zeros(rows, np.int64)
        self._width = width
        # 1 / T by regime: the device multiplies.
        self._inverse = torch.ones(len(REGIMES), width, dtype=torch.float32, device=device)
        self._regime_of_slot = torch.zeros(rows + 1, dtype=torch.int64, device=device)
        self._regimes = torch.zeros(rows, dtype=torch.int64, device=device)

    def confidences(self, scores: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Return sigmoid(scores / T), float32 [R, K], in a static buffer; a NaN score gives 0. Capturable."""
        out = self._buffers.output(scores, slots)
        regimes = self._regimes[: scores.shape[0]]
        torch.index_select(self._regime_of_slot, 0, self._buffers.rows_of(slots), out=regimes)
        torch.index_select(self._inverse, 0, regimes, out=out)
        return out.mul_(scores).sigmoid_().nan_to_num_(nan=0.0)

    def learn(self, outcome: StepOutcome) -> None:
        """Count the rows of a step that verified everything; fit when there are enough.

        Rows of a trimmed step teach nothing: which were verified depended on their scores.
        """
        changes = self._book.changes
        _, renewed = self._book.observe(outcome)
        self._used[renewed] = 0
        if self._book.changes != changes:
            self._regime_of_slot.copy_(torch.from_numpy(self._book.regime), non_blocking=True)
        if not len(outcome.slots) or (outcome.admitted != outcome.drafted).any():
            return
        known = self._book.known(outcome.slots)
        safe = np.where(known, outcome.slots, 0)
        usable = known & outcome.learn & (outcome.drafted > 0) & (self._used[safe] < ROWS_PER_REQUEST)
        self._used[outcome.slots[usable]] += 1
        changed = False
        for regime, fit in self._fits.items():
            mine = usable & (outcome.sampled == (regime == SAMPLED))
            if mine.any():
                changed |= fit.count(_rows(outcome, mine))
        if changed:
            self._upload()

    def forget(self, slot: int) -> None:
        """Forget the slot's regime; what the request taught stays."""
        if self._book.forget(slot):
            self._regime_of_slot.copy_(torch.from_numpy(self._book.regime), non_blocking=True)

    def ready(self) -> tuple[bool, str]:
        """Return whether every regime of recent requests has temperatures; with none, whether any has."""
        return self._book.ready({regime: fit.ready() for regime, fit in self._fits.items()})

    def temperatures(self) -> dict[str, list[float]]:
        """Return the temperatures in use by regime, K each; 1 where there are no others."""
        return {REGIMES[regime]: fit.served().tolist() for regime, fit in self._fits.items()}

    def reliability(self) -> dict[str, list[dict[str, float | int | None]]]:
        """Return, for each regime, one row a position: labels, mean predicted and observed acceptance."""
        return {REGIMES[regime]: fit.reliability() for regime, fit in self._fits.items()}

    def export_state(self, fingerprint: str) -> dict[str, Any]:
        """Return the temperatures, JSON-ready; ``fingerprint`` names the target and drafter they are of."""
        learnt = {REGIMES[regime]: fit.export_state() for regime, fit in self._fits.items()}
        return envelope(NAME, fingerprint, self._width, learnt)

    def import_state(self, state: object, fingerprint: str) -> None:
        """Use the temperatures of ``export_state``, or of another engine's parsed JSON (``temperatures_of``).

        Regimes without temperatures go on as they were. Other engines name no target: theirs are taken as
        they are, for both regimes unless they say which.

        Raises:
            CalibrationError: malformed, out of range, or saved under another signal, fingerprint or K.
                Nothing is changed then.
        """
        fits = {regime: TemperatureFit(self._width) for regime in self._fits}
        if isinstance(state, dict) and "learnt" in state:
            learnt = learnt_of(state, NAME, fingerprint, self._width)
            for regime, fit in fits.items():
                fit.import_state(learnt.get(REGIMES[regime]))
        else:
            found = temperatures_of(state, self._width)
            for regime, fit in fits.items():
                if REGIMES[regime] in found:
                    fit.give(found[REGIMES[regime]])
        self._fits |= {regime: fit for regime, fit in fits.items() if fit.temperatures is not None}
        self._upload()

    def _upload(self) -> None:
        table = np.ones((len(REGIMES), self._width))
        having = [regime for regime, fit in self._fits.items() if fit.temperatures is not None]
        for regime in having:
            table[regime] = 1.0 / self._fits[regime].served()
        if having:
            table[UNKNOWN] = np.exp(np.log(table[having]).mean(axis=0))
        self._inverse.copy_(torch.from_numpy(table.astype(np.float32)), non_blocking=True)


def _rows(outcome: StepOutcome, chosen: np.ndarray) -> Evidence:
    judged = outcome.drafted if outcome.judged is None else outcome.judged
    return Evidence(
        outcome.scores[chosen].astype(np.float64),
        outcome.accepted[chosen],
        judged[chosen],
        outcome.slots[chosen],
    )
