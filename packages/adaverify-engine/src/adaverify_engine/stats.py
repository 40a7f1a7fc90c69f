"""Counters of one engine: what it did and where the time went."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from adaverify_contracts import StepOutcome

PHASES = ("draft", "plan", "forward", "accept", "observe")
"""Parts of a step in order. ``plan`` includes publishing, assignment and rows; ``observe`` is off the decode
path."""


@dataclass(slots=True)
class EngineStats:
    """Totals since the engine was made or ``reset``.

    Attributes:
        steps: steps run; decode_steps: those with at least one decode request.
        decode_requests: decode requests summed over steps.
        prompt_tokens: prompt tokens computed.
        emitted: tokens handed to callers.
        drafted: draft tokens scheduled; verified: of those, verified; accepted: of those, accepted.
        discarded: tokens decided but cut off by a stop condition before them.
        seconds: wall time by phase, keys ``PHASES``.
    """

    steps: int = 0
    decode_steps: int = 0
    decode_requests: int = 0
    prompt_tokens: int = 0
    emitted: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    discarded: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    def count(self, outcome: StepOutcome, alive: np.ndarray) -> None:
        """Add one step.

        Args:
            outcome: what the step did.
            alive: bool [R], rows whose request had not ended before; the others cost and gain nothing.
        """
        self.steps += 1
        self.decode_steps += len(alive) > 0
        self.decode_requests += int(alive.sum())
        self.emitted += outcome.emitted
        self.drafted += int(outcome.drafted.sum())
        self.verified += int(outcome.admitted.sum())
        self.accepted += int(outcome.accepted[alive].sum())

    @property
    def wasted(self) -> int:
        """Verified draft tokens that were not accepted."""
        return self.verified - self.accepted

    @property
    def accepted_length(self) -> float:
        """Accepted drafts plus the bonus token, per decode request and step; 0 before the first."""
        if not self.decode_requests:
            return 0.0
        return 1.0 + self.accepted / self.decode_requests

    @property
    def mean_budget(self) -> float:
        """Draft tokens verified in one decode step, on average; 0 before the first."""
        return self.verified / self.decode_steps if self.decode_steps else 0.0

    @property
    def acceptance_of_drafted(self) -> float:
        """Accepted per scheduled draft token; 0 when none was scheduled."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def acceptance_of_verified(self) -> float:
        """Accepted per verified draft token; 0 when none was verified."""
        return self.accepted / self.verified if self.verified else 0.0

    @property
    def total_seconds(self) -> float:
        """Wall time of all steps."""
        return sum(self.seconds.values())

    def as_dict(self) -> dict[str, Any]:
        """Return counters and derived rates, JSON-ready."""
        names = (
            "steps decode_steps decode_requests prompt_tokens emitted drafted verified accepted discarded "
            "wasted accepted_length mean_budget acceptance_of_drafted acceptance_of_verified total_seconds"
        )
        return {name: getattr(self, name) for name in names.split()} | {"seconds": dict(self.seconds)}


class PhaseClock:
    """Splits one step's wall time: ``mark(phase)`` charges everything since the last mark to ``phase``."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self._begin = self._last = perf_counter()

    def mark(self, phase: str) -> None:
        """Charge the time since the last mark to ``phase``."""
        now = perf_counter()
        self._seconds[phase] += now - self._last
        self._last = now

    @property
    def last(self) -> float:
        """Clock time of the last mark."""
        return self._last

    @property
    def elapsed(self) -> float:
        """Seconds from the clock's start to the last mark."""
        return self._last - self._begin
