"""Steps launched and not read yet: one replay each, read in order while the next one runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Generic, TypeVar

from adaverify_contracts import Plan, StepState
from adaverify_engine.results import HostResults, ResultRing

if TYPE_CHECKING:
    from adaverify_runtime import Verifier

AHEAD = 2
"""Steps under way at once: the device runs one while the host reads the one before and launches the next."""

Rows = TypeVar("Rows")


@dataclass(frozen=True, slots=True)
class Landed(Generic[Rows]):
    """A step whose results are on the host.

    Attributes:
        state: the step; plan: its plan; rows: what was launched with it; results: what it decided.
        at: clock time at which the results were read.
        seconds: how long it kept the device, as far as the host can tell; None where it cannot.
        waited: seconds spent waiting for the results, and preparing the next plan meanwhile.
    """

    state: StepState
    plan: Plan
    rows: Rows
    results: HostResults
    at: float
    seconds: float | None
    waited: float

    @property
    def host_seconds(self) -> float | None:
        """Seconds of the step in which the host worked, None where it was not timed."""
        return None if self.seconds is None else self.seconds - self.waited


class Flight(Generic[Rows]):
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
        self._flying: deque[tuple[StepState, Plan, Rows, int, float]] = deque()
        self._last = 0.0
        # Steps under way that are read late.
        self._late = 0

    def __len__(self) -> int:
        """Return the steps launched and not dropped."""
        return len(self._flying)

    @property
    def states(self) -> Iterator[StepState]:
        """The steps themselves, the oldest first."""
        return (one[0] for one in self._flying)

    def seconds_left(self) -> float:
        """Return what the steps under way still take by their plans; those without a price count nothing."""
        foreseen = sum(one[1].predicted_seconds or 0.0 for one in self._flying)
        if not foreseen:
            return 0.0
        # The oldest runs since the one before it was read, or since it was launched.
        return max(0.0, foreseen - (perf_counter() - max(self._flying[0][4], self._last)))

    def leave(self) -> None:
        """Take no times of the steps under way: the host does something else before it reads them."""
        self._late = len(self._flying)

    def resume(self) -> None:
        """Count no time before now to steps of this flight: something else had the device."""
        self._last = perf_counter()

    def launch(self, state: StepState, plan: Plan, rows: Rows, started: float) -> bool:
        """Launch a planned step; False when no captured size serves it.

        A launch that is interrupted leaves the device a step ahead of what anybody knows of.

        Args:
            state: the step; plan: its plan.
            rows: whatever the reader of its results needs to know.
            started: clock time at which its planning began.
        """
        begun = perf_counter()
        if self._verifier.launch(plan, state) is None:
            return False
        self.launch_seconds = perf_counter() - begun
        self._flying.append((state, plan, rows, self._ring.send(), started))
        return True

    def read(self) -> Landed[Rows]:
        """Wait for the oldest step under way and return it; ``drop`` it once its results are handed out."""
        state, plan, rows, entry, started = self._flying[0]
        asked = perf_counter()
        if not self._ring.arrived(entry):
            # The host has nothing else to do now, and the next plan then less.
            self._verifier.prepare()
        results = self._ring.take(entry, state.requests)
        now = perf_counter()
        seconds, self._last = now - max(started, self._last), now
        return Landed(state, plan, rows, results, now, None if self._late else seconds, now - asked)

    def drop(self) -> None:
        """Forget the oldest step under way."""
        self._flying.popleft()
        self._late = max(0, self._late - 1)

    def land(self) -> Landed[Rows]:
        """Read the oldest step under way and drop it, for a reader that has nothing to undo."""
        landed = self.read()
        self.drop()
        return landed
