"""One round of one arm: counted once it runs steadily, checked against the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

import numpy as np

from adaverify.bench.endtoend.text import Cursors, Text
from adaverify_contracts import WrongValueError

SETTLE = 4
"""Steps of a round before counting begins: they fill the pipeline, and their budgets read nothing yet."""
CHECKED = 8
"""Steps of every arm that are compared with the records before anything is timed."""
_REMEDY = "report it with this command; no time was taken"


@dataclass(frozen=True, slots=True)
class Seen:
    """A finished step on the host.

    Attributes:
        admitted: int64 [R]; accepted: int64 [R].
        budget: drafts that were planned; tier: query tokens that were executed.
        at: clock time at which it was read; waited: seconds spent waiting for it.
        lag: steps from the confidences that its budget read to the step; None where it read none.
    """

    admitted: np.ndarray
    accepted: np.ndarray
    budget: int
    tier: int
    at: float
    waited: float
    lag: int | None = None


class Steps(Protocol):
    """An arm that can run.

    Attributes:
        ahead: steps that are launched before the oldest is read.
    """

    ahead: int

    def open(self, starts: np.ndarray) -> None:
        """Begin a round with requests at ``starts``; nothing is under way."""
        ...

    def __len__(self) -> int:
        """Return the steps under way."""
        ...

    def launch(self) -> None:
        """Plan and launch the next step."""
        ...

    def land(self) -> Seen:
        """Wait for the oldest step under way, learn from it, return it."""
        ...

    def positions(self) -> np.ndarray:
        """Return int64 [R], where the device says that each request stands; waits."""
        ...


@dataclass(slots=True)
class Round:
    """What the counted steps of a round did.

    Attributes:
        requests: R; steps: how many counted.
        tokens: emitted; verified: drafts verified; accepted: of those; executed: query tokens, padding too.
        seconds: between the reading of the last step that did not count and the last that did.
        step_seconds: between successive readings.
        host: seconds of host work, waits left out; waited: seconds of waiting.
        lags: how many steps were sized by confidences that old.
    """

    requests: int
    steps: int = 0
    tokens: int = 0
    verified: int = 0
    accepted: int = 0
    executed: int = 0
    seconds: float = 0.0
    step_seconds: list[float] = field(default_factory=list)
    host: float = 0.0
    waited: float = 0.0
    lags: Counter[int | None] = field(default_factory=Counter)

    def count(self, seen: Seen, since: float) -> None:
        """Count a step that was read ``seen.at - since`` seconds after the one before."""
        accepted = int(seen.accepted.sum())
        self.steps += 1
        self.tokens += accepted + self.requests
        self.accepted += accepted
        self.verified += int(seen.admitted.sum())
        self.executed += seen.tier
        self.step_seconds.append(seen.at - since)
        self.seconds += seen.at - since
        self.waited += seen.waited
        self.lags[seen.lag] += 1


def run_round(
    steps: Steps,
    starts: np.ndarray,
    *,
    tokens: int = 0,
    least: int = 1,
    settle: int = SETTLE,
    inspect: Callable[[Seen], None] | None = None,
) -> Round:
    """Run an arm until its counted steps have emitted ``tokens`` in at least ``least`` steps.

    Arms that emit the same number of tokens from the same starts have passed the same text.

    Args:
        steps: the arm.
        starts: int64 [R], first positions.
        tokens: to emit in counted steps.
        least: counted steps at least.
        settle: steps before counting.
        inspect: called with every step that was read.
    """
    found = Round(len(starts))
    steps.open(starts)
    read, since, host = 0, 0.0, 0.0
    while found.steps < least or found.tokens < tokens:
        begun = perf_counter()
        while len(steps) < steps.ahead:
            steps.launch()
        seen = steps.land()
        host = perf_counter() - begun - seen.waited
        if inspect is not None:
            inspect(seen)
        if read >= settle:
            found.count(seen, since)
            found.host += host
        read, since = read + 1, seen.at
    while len(steps):
        seen = steps.land()
        if inspect is not None:
            inspect(seen)
    return found


def launched(ahead: int, least: int, *, settle: int = SETTLE) -> int:
    """Return how many steps ``run_round`` launches for ``least`` counted ones and no number of tokens.

    Args:
        ahead: of the arm; least, settle: as given to ``run_round``.
    """
    return settle + least + ahead - 1


def check_arm(name: str, steps: Steps, text: Text, starts: np.ndarray) -> None:
    """Require that an arm accepts what the records say, spends its budget, and stands where it should.

    Raises:
        WrongValueError: says what differs first.
    """
    cursors = Cursors(text, starts)
    number = 0

    def inspect(seen: Seen) -> None:
        nonlocal number
        expected = cursors.advance(seen.admitted)
        if not np.array_equal(expected, seen.accepted) or int(seen.admitted.sum()) != seen.budget:
            wrong, spent = int((expected != seen.accepted).sum()), int(seen.admitted.sum())
            raise WrongValueError(
                f"step {number} of arm {name} is not what the records say",
                arrived=f"{wrong} of {len(expected)} requests differ, {spent} verified",
                allowed=f"min(admitted, recorded) accepted for each, {seen.budget} verified",
                remedy=_REMEDY,
            )
        number += 1

    run_round(steps, starts, least=CHECKED, settle=0, inspect=inspect)
    found = steps.positions()
    if astray := int((found != cursors.at).sum()):
        raise WrongValueError(
            f"arm {name} stands elsewhere on the device than the records lead",
            arrived=f"{astray} of {len(found)} requests differ after {number} steps",
            allowed="one position for host and device",
            remedy=_REMEDY,
        )
