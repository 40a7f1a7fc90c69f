"""Signals (how sure) and policies (how many): the two extension points of the manager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from adaverify_contracts import _check
from adaverify_contracts._frozen import quick
from adaverify_contracts.enums import BudgetReads, Seen

if TYPE_CHECKING:
    import numpy as np
    import torch

    from adaverify_contracts.limits import Limits
    from adaverify_contracts.plan import StepOutcome


@runtime_checkable
class Signal(Protocol):
    """Turns a drafter's raw scores into conditional acceptance probabilities."""

    def confidences(self, scores: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Return confidences float32 [R, K] in [0, 1] for scores float32 [R, K] and slots int64 [R].

        Runs on the decode path: device work only, no host read, capturable. Parameters it learnt live in
        static device tensors that ``learn`` updates.
        """
        ...

    def learn(self, outcome: StepOutcome) -> None:
        """Count this step's labels, off the decode path; never raises on censored or empty outcomes."""
        ...

    def forget(self, slot: int) -> None:
        """Drop whatever belongs to the request that held ``slot``."""
        ...

    def ready(self) -> tuple[bool, str]:
        """Return whether the confidences may drive trimming, and the reason in words."""
        ...


@dataclass(frozen=True, slots=True)
class SignalDescriptor:
    """A confidence source as a plugin registers it.

    Attributes:
        name: unique name.
        seen: what its confidence for position k has seen *in addition to* the drafter's score; the effective
            value is the larger of this and the drafter's own declaration.
        reads_scores: False when the signal ignores the drafter's scores (then only ``seen`` counts).
        factory: called once as ``factory(limits, device)``.
    """

    name: str
    seen: Seen
    reads_scores: bool
    factory: Callable[[Limits, torch.device], Signal] = field(repr=False)

    def __post_init__(self) -> None:
        _check.name("SignalDescriptor", self.name)
        _check.instance("SignalDescriptor", "seen", self.seen, Seen)
        _check.instance("SignalDescriptor", "reads_scores", self.reads_scores, bool)
        _check.callable_field("SignalDescriptor", "factory", self.factory)


@quick
@dataclass(frozen=True, slots=True)
class BudgetCandidates:
    """The budgets a policy may choose from, smallest first, with what each buys and costs.

    Attributes:
        budgets: int64 [C], strictly rising; the last is full verification.
        tokens: float64 [C], tau: expected emitted tokens, bonus tokens included.
        seconds: float64 [C], C(n): whole modelled step time, positive and never falling.
        rate: long-run tokens per second achieved so far (lagged), or None before the first measurement.
    """

    budgets: np.ndarray
    tokens: np.ndarray
    seconds: np.ndarray
    rate: float | None


@runtime_checkable
class Policy(Protocol):
    """Chooses one budget."""

    def choose(self, candidates: BudgetCandidates) -> int:
        """Return the index of the chosen candidate. Pure: equal input gives equal output."""
        ...


@dataclass(frozen=True, slots=True)
class PolicyDescriptor:
    """A budget policy as a plugin registers it.

    Attributes:
        name: unique name.
        reads: what its budget depends on; the manager feeds it accordingly and checks it with the signal.
        factory: called once, without arguments.
    """

    name: str
    reads: BudgetReads
    factory: Callable[[], Policy] = field(repr=False)

    def __post_init__(self) -> None:
        _check.name("PolicyDescriptor", self.name)
        _check.instance("PolicyDescriptor", "reads", self.reads, BudgetReads)
        _check.callable_field("PolicyDescriptor", "factory", self.factory)
