"""What is known about the request in each slot: its generation and its sampling regime."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from adaverify_contracts import StepOutcome

UNKNOWN, GREEDY, SAMPLED = 0, 1, 2
REGIMES = ("unknown", "greedy", "sampled")
# A slot whose request ended is not recycled at once; after 8 steps without an outcome its regime is out of
# use.
RECENT_STEPS = 8
_NOBODY = np.zeros(0, np.int64)


class SlotBook:
    """Generation and regime of each slot, so that nothing crosses from a request to its slot's next holder.

    ``strangers`` counts the last outcome's requests without a slot.

    Args:
        slots: number of slots; ``regime`` has one row more, the spare one of requests without a slot.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.regime = np.zeros(slots + 1, np.int64)
        self._seen = np.full(slots + 1, -RECENT_STEPS, np.int64)
        # How often ``regime`` was changed, for whoever keeps a copy.
        self.changes = 0
        self._steps = 0
        self._outside = 0
        # The last outcome's slots, generations and regimes as bytes: a batch that repeats changes nothing.
        self._batch: tuple[bytes, bytes, bytes] | None = None
        # How many outcomes in a row were of that batch. Once it alone is recent, how many requests of each
        # regime are recent stays what it was found to be.
        self._repeats = 0
        self._recent: list[int] | None = None
        # What readiness was asked of and answered last: its words are a function of these alone.
        self._asked: tuple[list[int], int, Mapping[int, tuple[bool, str]]] | None = None
        self._answer = (False, "")
        self._current = np.zeros(0, bool)
        self._holders = _NOBODY
        self.strangers = 0
        self._generation = np.full(slots, -1, np.int64)
        self._closed = np.zeros(slots, bool)

    def known(self, slots: np.ndarray) -> np.ndarray:
        """Return bool [R]: which of ``slots`` int64 [R] exist."""
        return (slots >= 0) & (slots < self.slots)

    def observe(self, outcome: StepOutcome) -> tuple[np.ndarray, np.ndarray]:
        """Take over generations and regimes.

        Returns:
            ``current`` bool [R], rows whose request may still hold its slot; ``renewed`` int64 [N], slots
            that have a new holder since the last outcome. Both are read-only.
        """
        batch = (outcome.slots.tobytes(), outcome.generations.tobytes(), outcome.sampled.tobytes())
        renewed = _NOBODY
        if batch != self._batch:
            renewed = self._take(outcome)
            self._batch, self._repeats, self._recent = batch, 0, None
        self._repeats += 1
        self._seen[self._holders] = self._steps
        self._steps += 1
        self._outside += self.strangers
        return self._current, renewed

    def _take(self, outcome: StepOutcome) -> np.ndarray:
        """Take over another batch than the last; return the slots int64 [N] that have a new holder."""
        slots, generations, before = outcome.slots, outcome.generations, self.regime.copy()
        known = self.known(slots)
        safe = np.where(known, slots, 0)
        newer = known & (generations > self._generation[safe])
        current = newer | (known & (generations == self._generation[safe]) & ~self._closed[safe])
        self._generation[slots[newer]] = generations[newer]
        self._closed[slots[newer]] = False
        self._current, self._holders = current, slots[current]
        self.regime[self._holders] = np.where(outcome.sampled[current], SAMPLED, GREEDY)
        self.changes += not np.array_equal(before, self.regime)
        self.strangers = int((~known).sum())
        return np.asarray(slots[newer])

    def forget(self, slot: int) -> bool:
        """Close the slot: late outcomes of its generation no longer count for it. False if there is none."""
        if not 0 <= slot < self.slots:
            return False
        self.regime[slot] = UNKNOWN
        self._closed[slot] = True
        self.changes += 1
        self._batch, self._repeats, self._recent = None, 0, None
        return True

    def ready(self, answers: Mapping[int, tuple[bool, str]]) -> tuple[bool, str]:
        """Combine ``answers`` by regime: all regimes of recent requests; when there are none, any of them."""
        asked = (self._recent_regimes(), self._outside, answers)
        if asked != self._asked:
            self._asked, self._answer = asked, self._combine(asked[0], answers)
        return self._answer

    def _combine(self, recent: list[int], answers: Mapping[int, tuple[bool, str]]) -> tuple[bool, str]:
        held = [regime for regime in answers if recent[regime]]
        missing = [regime for regime in held or answers if not answers[regime][0]]
        ready = not missing if held else len(missing) < len(answers)
        named = [regime for regime in held or answers if answers[regime][0] == ready]
        reasons = [f"{REGIMES[regime]}: {answers[regime][1]}" for regime in named]
        if self._outside:
            reasons.append(
                f"{self._outside} outcomes of slots outside 0 .. {self.slots - 1} were not counted"
            )
        return ready, "; ".join(reasons)

    def _recent_regimes(self) -> list[int]:
        """Return how many requests of each regime had an outcome in the last steps, one count a regime."""
        if self._recent is not None:
            return self._recent
        regimes = self.regime[self._seen > self._steps - 1 - RECENT_STEPS]
        recent: list[int] = np.bincount(regimes, minlength=len(REGIMES)).tolist()
        if self._repeats >= RECENT_STEPS:
            self._recent = recent
        return recent
