"""What the manager remembers of a plan until its outcome arrives."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from adaverify_contracts import PlanError, StepState
from adaverify_verification.decision import Probe

# Outcomes arrive from a drain a few steps later; older plans whose outcome never came are dropped.
DEPTH = 64


@dataclass(slots=True)
class Entry:
    """One planned step.

    Attributes:
        state: the step as it was planned.
        creditable: False when the step's time says nothing about the priced shape (co-scheduled prefill).
        foreseen: True when the budget knew every request's survivals from a signal that was ready; only then
            does the predicted number of tokens test the signal.
        probe: set when the step explores.
        notes: names of the fallbacks that the plan took.
        number: place of the plan among all that were opened; steps may be numbered anew, places never are.
    """

    state: StepState
    creditable: bool
    foreseen: bool = False
    probe: Probe | None = None
    notes: list[str] = field(default_factory=list)
    number: int = 0


class Ledger:
    """Open plans by step, bounded."""

    def __init__(self, depth: int = DEPTH) -> None:
        self._open: OrderedDict[int, Entry] = OrderedDict()
        self._depth = depth
        self._opened = 0
        self._executed = 0

    def open(self, step: int, entry: Entry) -> None:
        """Remember a plan; planning a step again replaces its entry."""
        self._opened += 1
        entry.number = self._opened
        if step in self._open:
            self._open.move_to_end(step)
        self._open[step] = entry
        if len(self._open) > self._depth:
            self._open.popitem(last=False)

    def get(self, step: int) -> Entry | None:
        """Return the open plan of ``step``, None when it was never planned, closed or dropped."""
        return self._open.get(step)

    def executed(self, step: int) -> None:
        """Note that the open plan of ``step`` was executed."""
        if entry := self._open.get(step):
            self._executed = entry.number

    def execute(self, step: int) -> None:
        """Do what ``require_current`` and then ``executed`` do."""
        self.require_current(step)
        self.executed(step)

    def require_current(self, step: int) -> None:
        """Refuse the open plan of ``step`` where a plan that was opened later was executed already.

        Raises:
            PlanError: buffers and confidences have gone on, so nothing would be right about it.
        """
        entry = self._open.get(step)
        if entry is not None and entry.number < self._executed:
            raise PlanError(
                "the plan is older than one that was executed already",
                arrived=step,
                allowed="a step that was planned after the last executed one, or that one again",
                remedy="execute steps in the order of their plans, and plan one that was missed anew",
            )

    def close(self, step: int) -> Entry | None:
        """Return and forget the open plan of ``step``."""
        return self._open.pop(step, None)
