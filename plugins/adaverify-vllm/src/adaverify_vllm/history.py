"""Confidences by request slot: live on the device to rank drafts, later on the host to size budgets.

One table on the device, float32 [slots, K + 2]: a request's confidences, its length after the step, and how
many drafts it was admitted. It travels as a whole behind every step, so one copy brings the host both what
the next budgets read and what became of the last ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from adaverify_contracts import Limits
from adaverify_verification import make_relay
from adaverify_verification.live import oddity
from adaverify_verification.quantise import SCORE_MAX, scores

# Columns behind the confidences.
LENGTH, ADMITTED = 0, 1
EXTRA = 2


@dataclass(frozen=True, slots=True)
class Arrival:
    """What one step left behind.

    Attributes:
        step: the step it was.
        generations: int64 [slots], the requests it is about.
        lengths: int64 [slots], tokens of each request after the step.
        admitted: int64 [slots], drafts that the step verified for each.
    """

    step: int
    generations: np.ndarray
    lengths: np.ndarray
    admitted: np.ndarray


class ConfidenceHistory:
    """The table, its relay, and the survivals that budgets may read.

    A publication of step s holds confidences of drafts that step s + 1 verifies. Budgets read history: step t
    uses publications of step t - 2 and older, so none has seen a draft that it sizes (maths section 5.5).

    Args:
        slots: request slots.
        drafts: K.
        device: run device.
        depth: entries of the relay's ring.
    """

    def __init__(self, slots: int, drafts: int, device: torch.device, depth: int) -> None:
        width = drafts + EXTRA
        self.drafts = drafts
        self.table = torch.zeros((slots, width), dtype=torch.float32, device=device)
        self.live = self.table[:, :drafts]
        self.live.fill_(1.0)
        self.generations = np.zeros(slots, dtype=np.int64)
        self.odd: str | None = None
        # The step whose publication the survivals come from, -1 before the first.
        self.read = -1
        self._relay = make_relay(Limits(slots, width, 1, 1), device, depth)
        self._slots = np.arange(slots, dtype=np.int64)
        self._scores = np.full((slots, drafts), SCORE_MAX, dtype=np.uint16)
        self._known = np.zeros(slots, dtype=bool)
        self._recorded = np.full(slots, -1, dtype=np.int64)
        self._seen = -1
        self._waiting: list[tuple[int, np.ndarray, np.ndarray]] = []

    @property
    def dropped(self) -> int:
        """Publications that found no free entry of the ring."""
        return self._relay.dropped

    def add(self, slot: int) -> None:
        """Forget a slot's former request: the new one is optimistic."""
        self.generations[slot] += 1
        self._scores[slot] = SCORE_MAX
        self._known[slot] = False
        self._recorded[slot] = -1
        self.live[slot].fill_(1.0)

    def publish(
        self,
        step: int,
        rows: torch.Tensor,
        slots: np.ndarray,
        confidences: torch.Tensor,
        lengths: torch.Tensor,
    ) -> None:
        """Enqueue a step's confidences; launches only.

        Args:
            step: the step that ended.
            rows: int64 [R] on the device, the requests' slots.
            slots: the same on the host.
            confidences: float32 [at least R, K] on the device, rows in the order of ``rows``.
            lengths: int32 [slots] on the device, tokens of each request.
        """
        self.live.index_copy_(0, rows, confidences[: rows.shape[0]])
        self.table[:, self.drafts + LENGTH].copy_(lengths)
        self._recorded[slots] = step
        self._relay.publish(step, self._slots, self.generations, self.table)

    def arrivals(self) -> Iterator[Arrival]:
        """Yield what has arrived since the last call, oldest first; never waits."""
        newest = self._relay.latest()
        while newest is not None and newest.step > self._seen:
            # Usually that is the next one. If it is not, the next one may also have been dropped.
            snapshot = newest
            if newest.step > self._seen + 1:
                next_one = self._relay.latest(at_most=self._seen + 1)
                if next_one is not None and next_one.step > self._seen:
                    snapshot = next_one
            self._seen = snapshot.step
            values, width = snapshot.confidences, self.drafts
            self._waiting.append((snapshot.step, snapshot.generations, values[:, :width]))
            yield Arrival(
                snapshot.step,
                snapshot.generations,
                values[:, width + LENGTH].astype(np.int64),
                values[:, width + ADMITTED].astype(np.int64),
            )

    def refresh(self, step: int, slots: np.ndarray) -> None:
        """Turn the newest publication that ``step`` may read into survivals of these slots.

        Args:
            step: the step to be planned next.
            slots: int64, the slots in use; others keep what they had.
        """
        usable = [item for item in self._waiting if item[0] <= step - 2]
        if not usable:
            return
        self.read, generations, values = usable[-1]
        self._waiting = [item for item in self._waiting if item[0] > self.read]
        chosen = values[slots]
        self.odd = oddity(chosen)
        current = generations[slots] == self.generations[slots]
        self._scores[slots] = np.where(current[:, None], scores(chosen), SCORE_MAX)
        self._known[slots] = current

    def survivals(self, step: int, slots: np.ndarray) -> tuple[np.ndarray, bool]:
        """Return quantised survivals uint16 [R, K], a copy, and whether all of them are known.

        A request that sat out a step has its newest confidences in a publication that is old enough, and they
        are those of the drafts to be sized: it is optimistic.
        """
        found = self._scores[slots]
        known = self._known[slots] & (self._recorded[slots] > self.read)
        if known.all():
            return found, True
        found[~known] = SCORE_MAX
        return found, False

    def lag(self, step: int) -> int | None:
        """Return the steps between the confidences that budgets read and ``step``, None without any."""
        # A publication of step s holds confidences of the drafts of step s + 1.
        return None if self.read < 0 else step - self.read - 1

    def close(self) -> None:
        """Release the relay."""
        self._relay.close()


def used_slots(state: Any) -> np.ndarray:
    """Return int64, the slots of all running requests."""
    index = state.req_id_to_index
    return np.fromiter(index.values(), np.int64, len(index))
