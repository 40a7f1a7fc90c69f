"""Recorded steps launched and not read yet: one replay each, read one behind."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from adaverify_contracts import EngineError, Plan, StepState
from adaverify_engine.results import HostResults, ResultRing

if TYPE_CHECKING:
    from adaverify_runtime import Verifier


@dataclass(frozen=True, slots=True)
class Landed:
    """A step whose results are on the host.

    Attributes:
        state: the step; plan: its plan; results: what it decided.
        at: clock time at which the results were read.
        seconds: how long it kept the device, as far as the host can tell.
        waited: seconds of that spent waiting for the results.
    """

    state: StepState
    plan: Plan
    results: HostResults
    at: float
    seconds: float
    waited: float


class Flight:
    """Launches steps of a verifier that captured them whole, and reads them in order.

    Args:
        verifier: replays.
        ring: results on their way to the host.

    Attributes:
        launch_seconds: what the last launch took on the host: a few integers and one replay.
    """

    def __init__(self, verifier: Verifier, ring: ResultRing) -> None:
        self.launch_seconds = 0.0
        self._verifier, self._ring = verifier, ring
        self._flying: deque[tuple[StepState, Plan, int, float]] = deque()
        self._last = 0.0

    def __len__(self) -> int:
        """Return the steps launched and not read."""
        return len(self._flying)

    def launch(self, state: StepState, plan: Plan, started: float) -> None:
        """Launch a planned step, planned from clock time ``started`` on.

        Raises:
            EngineError: no captured size serves the plan.
        """
        begun = perf_counter()
        if self._verifier.launch(plan, state) is None:
            raise EngineError(
                "no captured size serves this step",
                arrived=f"{plan.requests} requests, budget {plan.budget}",
                allowed=f"tokens up to one of the tiers {self._verifier.tiers}",
                remedy="capture a ladder that ends at the largest batch",
            )
        self.launch_seconds = perf_counter() - begun
        self._flying.append((state, plan, self._ring.send(), started))

    def land(self) -> Landed:
        """Wait for the oldest step under way and return it."""
        state, plan, entry, started = self._flying.popleft()
        asked = perf_counter()
        results = self._ring.take(entry, state.requests)
        now = perf_counter()
        seconds, self._last = now - max(started, self._last), now
        return Landed(state, plan, results, now, seconds, now - asked)
