"""What became of each check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

READ = "read: adaverify_contracts.DecodeRows and DecodeRowBuilder; docs/explanation/metadata.md"
# In front of a skip that another check's failure explains.
NOT_RUN = "not run: "
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


class CheckFailed(AssertionError):
    """A strategy breaks the contract; the text is for its author."""


class CheckSkipped(Exception):
    """A check has nothing to judge; the text says why."""


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """One check of one strategy.

    Attributes:
        check: name of the check.
        status: ``passed``, ``failed`` or ``skipped``.
        message: what was found; for a pass, how it was judged.
        numbers: measurements by name, for instance ``median_us``.
    """

    check: str
    status: str
    message: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """All checks of one strategy on one device.

    Attributes:
        strategy: name of the strategy.
        device: device the rows were built on.
        architecture: architecture word of the capability that the factory was given.
        assumed: True when that capability was injected and not probed here.
        outcomes: one for each check, in order.
    """

    strategy: str
    device: str
    architecture: str
    assumed: bool
    outcomes: tuple[CheckOutcome, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed and at least one passed."""
        states = {outcome.status for outcome in self.outcomes}
        return PASSED in states and FAILED not in states

    @property
    def failures(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(outcome.check for outcome in self.outcomes if outcome.status == FAILED)

    @property
    def median_us(self) -> float | None:
        """Median time of one build in microseconds, None when it was not measured."""
        found = (outcome.numbers.get("median_us") for outcome in self.outcomes)
        return next((value for value in found if value is not None), None)

    def __getitem__(self, check: str) -> CheckOutcome:
        """Return the outcome of a check by name."""
        return next(outcome for outcome in self.outcomes if outcome.check == check)

    def text(self) -> str:
        """Return one line a check, with the message of each that did not pass."""
        lines = [f"{self.strategy} on {self.device} ({self.architecture}{', assumed' * self.assumed})"]
        for outcome in self.outcomes:
            lines.append(f"{outcome.status:>8}  {outcome.check}")
            if outcome.status != PASSED and outcome.message:
                lines += [f"          {line}" for line in outcome.message.splitlines()]
        return "\n".join(lines)
