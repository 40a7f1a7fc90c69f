"""Live confidences: kept on the device to rank this step's drafts, sent to the relay for later budgets."""

from __future__ import annotations

import math

import numpy as np
import torch

from adaverify_contracts import LayoutError, Limits, PlanError, Signal, StepState
from adaverify_verification import containment
from adaverify_verification.intake import Intake, require_step
from adaverify_verification.relay import Relay
from adaverify_verification.rows import Rows, frozen, kept, lookup, same_requests, same_values

_ONE = int(np.float32(1.0).view(np.uint32))


class LiveConfidences:
    """Static buffers of the live confidences, and whose they are.

    Args:
        limits: largest shapes.
        device: run device.
        signal: turns scores into confidences.
        relay: where they are published.
    """

    def __init__(self, limits: Limits, device: torch.device, signal: Signal, relay: Relay) -> None:
        rows, width = limits.max_requests, limits.draft_tokens
        self._limits = limits
        self._signal = signal
        self._relay = relay
        # The last row stays 1.0: the optimistic row of a request that published nothing.
        self._live = torch.ones((rows + 1, width), dtype=torch.float32, device=device)
        self._intake = Intake(limits, self._live.device)
        self._aligned = torch.ones((rows, width), dtype=torch.float32, device=device)
        self._index = torch.zeros(rows, dtype=torch.int64, device=device)
        self._slots = torch.zeros(rows, dtype=torch.int64, device=device)
        # What the device's slots hold.
        self._uploaded = np.zeros(rows, dtype=np.int64)
        self._step: int | None = None
        self._rows: Rows = (frozen(()), frozen(()))
        # What was last held against the generations: a batch that comes again recycles nothing.
        self._held: Rows = self._rows
        self._generations = np.full(rows, -1, dtype=np.int64)
        self._fault: tuple[int, containment.PluginFault] | None = None
        # Ring entry, step, slots and generations of a publication between begin and end.
        self._begun: tuple[int | None, int, Rows] | None = None

    def fault(self, step: int) -> containment.PluginFault | None:
        """Return what was wrong with the signal when ``step`` published, None when nothing was."""
        return self._fault[1] if self._fault is not None and self._fault[0] == step else None

    def publish(self, step: int, slots: np.ndarray, generations: np.ndarray, scores: torch.Tensor) -> None:
        """Enqueue this step's confidences; see ``VerificationManager.publish``.

        A signal that fails publishes nothing: its step has no confidences of its own, and ``fault`` says why.

        No score is read here, so nothing is counted. Built-in signals that read scores give NaN the
        confidence 0 and infinities 0 or 1, and ``observe``, which gets the scores on the host, counts
        ``invalid-scores``. A signal that passes NaN on is counted where its confidences reach the host. Slots
        may have gaps and any order, and be some of the step's only: the other requests are optimistic, and a
        step that trims beside them counts ``unranked-requests``.
        """
        self._intake.check(step, slots, generations, scores)
        rows = self._kept(slots, generations)
        self._step, self._begun = None, None
        self._upload(slots)
        try:
            self._forget_recycled(rows)
            live = self._score(scores, self._slots[: len(slots)])
        except containment.PluginFault as fault:
            self._fault = (step, fault)
            return
        self._fault, self._step, self._rows = None, step, rows
        self._relay.publish(step, *rows, live)

    def capture_live(self, scores: torch.Tensor, slots: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
        """Run the device's share of ``publish``; see ``CapturedSteps.capture_live``."""
        live = self._score(scores, slots)
        self._relay.send(live, entry)
        return live

    def begin_publish(self, step: int, slots: np.ndarray, generations: np.ndarray) -> int:
        """Run the host's share before the replay; see ``CapturedSteps.begin_publish``."""
        require_step(step)
        if not len(slots) == len(generations) <= self._limits.max_requests:
            raise LayoutError(
                "a publication's slots do not fit the limits",
                arrived={"slots": len(slots), "generations": len(generations)},
                allowed=f"[R] and [R] with R <= {self._limits.max_requests}",
                remedy="begin it with the real requests of the step, in row order",
            )
        self._step, self._fault = None, None
        rows = self._kept(slots, generations)
        index: int | None = None
        try:
            self._forget_recycled(rows)
            index = self._relay.begin(step, *rows)
        except containment.PluginFault as fault:
            self._fault = (step, fault)
        self._begun = (index, step, rows)
        return self._relay.bin if index is None else index

    def end_publish(self) -> None:
        """Run the host's share after the replay; see ``CapturedSteps.end_publish``."""
        if self._begun is None:
            raise PlanError(
                "a publication was ended that was not begun",
                allowed="one end_publish for each begin_publish",
                remedy="call begin_publish before the replay",
            )
        index, step, rows = self._begun
        self._begun = None
        if index is not None:
            self._relay.launched(index)
        if self.fault(step) is None:
            self._step, self._rows = step, rows

    def rows(self, requests: int) -> torch.Tensor:
        """Return the live confidences float32 [requests, K], in the row order they were written in."""
        return self._live[:requests]

    def _score(self, scores: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        live = self._live[: scores.shape[0]]
        return live.copy_(containment.confidences(self._signal, scores, slots))

    def _upload(self, slots: np.ndarray) -> None:
        """Bring the slots to the device, unless they are there: a decode batch rarely changes."""
        rows = len(slots)
        if not same_values(self._uploaded[:rows], slots):
            self._uploaded[:rows] = slots
            # From pageable memory: staged at once, enqueued. A blocking copy would wait for the whole queue.
            self._slots[:rows].copy_(torch.from_numpy(slots), non_blocking=True)

    def ranking(self, state: StepState, rows: int) -> tuple[torch.Tensor, bool]:
        """Return confidences float32 [rows, K] in the order of ``state``, and whether they are this step's.

        A request that published nothing is optimistic (1.0), and so is everybody when this step published
        nothing: confidences of other drafts must not rank these.
        """
        if self._step != state.step:
            return self._aligned[:rows].fill_(1.0), False
        slots, generations = self._rows
        count = state.requests
        if same_requests(slots, generations, state):
            return self._live[:rows], True
        source = lookup(slots, generations, state)
        missing = source < 0
        source[missing] = self._limits.max_requests
        self._index[:count].copy_(torch.from_numpy(source), non_blocking=True)
        torch.index_select(self._live, 0, self._index[:count], out=self._aligned[:count])
        return self._aligned[:rows], not bool(missing.any())

    def _kept(self, slots: np.ndarray, generations: np.ndarray) -> Rows:
        """Return a publication's rows, which nobody changes later: the last ones where they come again."""
        return kept(self._held[0], slots), kept(self._held[1], generations)

    def _forget_recycled(self, rows: Rows) -> None:
        """Drop what a signal knows of a slot's former request before the new one is scored."""
        if rows[0] is self._held[0] and rows[1] is self._held[1]:
            return
        self._held = rows
        slots, generations = rows
        known = self._generations[slots]
        self._generations[slots] = generations
        for slot in slots[(known != generations) & (known >= 0)].tolist():
            containment.forget(self._signal, slot)


def oddity(confidences: np.ndarray) -> str | None:
    """Return what odd confidences are counted as: no numbers, or outside 0 .. 1 (clamped); else None."""
    if not confidences.size:
        return None
    # As unsigned integers, floats of 0 .. 1 lie below everything else: one search instead of two reductions.
    bits = confidences.view(np.uint32)
    if bits.item(bits.argmax()) <= _ONE:
        return None
    # Both bounds are NaN when any value is, and then neither comparison holds.
    lowest, highest = float(confidences.min()), float(confidences.max())
    if lowest >= 0 and highest <= 1:
        return None
    finite = math.isfinite(lowest) and math.isfinite(highest)
    return "clamped-confidences" if finite else "invalid-confidences"
