"""What the manager remembers of a plan until its outcome arrives."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from adaverify_contracts import StepState
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
    """

    state: StepState
    creditable: bool
    foreseen: bool = False
    probe: Probe | None = None
    notes: list[str] = field(default_factory=list)


class Ledger:
    """Open plans by step, bounded."""

    def __init__(self, depth: int = DEPTH) -> None:
        self._open: OrderedDict[int, Entry] = OrderedDict()
        self._depth = depth

    def open(self, step: int, entry: Entry) -> None:
        """Remember a plan; planning a step again replaces its entry."""
        self._open[step] = entry
        self._open.move_to_end(step)
        while len(self._open) > self._depth:
            self._open.popitem(last=False)

    def get(self, step: int) -> Entry | None:
        """Return the open plan of ``step``, None when it was never planned, closed or dropped."""
        return self._open.get(step)

    def close(self, step: int) -> Entry | None:
        """Return and forget the open plan of ``step``."""
        return self._open.pop(step, None)
