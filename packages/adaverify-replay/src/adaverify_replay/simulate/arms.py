"""The ways to choose budgets: the manager in each of its modes, and the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch

from adaverify_contracts import (
    BudgetReads,
    DescriptorError,
    Limits,
    Plan,
    PolicyDescriptor,
    Seen,
    SignalDescriptor,
    StepOutcome,
    StepState,
)
from adaverify_replay.records import RecordsHeader
from adaverify_replay.simulate.clock import Clock
from adaverify_replay.simulate.cursors import Batch
from adaverify_replay.simulate.lagged import LaggedRelay
from adaverify_replay.simulate.oracle import best_admitted
from adaverify_verification import (
    CALIBRATED,
    CostModel,
    CostTable,
    ManagerOptions,
    RatioPolicy,
    VerificationManager,
    calibration_subject,
)

LAG = 2
"""Steps from a confidence to the budget that reads it where steps run one ahead of the host."""


@dataclass(frozen=True, slots=True)
class Planning:
    """What the manager is made of; by default as a server that names nothing has it.

    Attributes:
        signal, policy: of the manager.
        options: of the manager; the mode is each arm's own.
        lag: steps from a publication to the first plan that may read it. From 1 on a step is planned before
            the outcome of the one before is known, as where the host launches one ahead.
        calibration: state that the signal starts from, None without one.
    """

    signal: SignalDescriptor = CALIBRATED
    policy: PolicyDescriptor = field(
        default_factory=lambda: PolicyDescriptor("ratio", BudgetReads.HISTORY, RatioPolicy)
    )
    options: ManagerOptions = field(default_factory=ManagerOptions)
    lag: int = LAG
    calibration: object = None

    def __post_init__(self) -> None:
        if not isinstance(self.lag, int) or isinstance(self.lag, bool) or not 0 <= self.lag <= 64:
            raise DescriptorError(
                "the lag of a simulation is out of range",
                arrived=self.lag,
                allowed="an int in 0 .. 64",
                remedy="choose 2 for steps that run one ahead, 0 for eager ones",
            )


def arm_names(draft_tokens: int) -> tuple[str, ...]:
    """Return every arm for K draft tokens: ``none``, ``fixed-1`` .. ``fixed-K``, ``adaptive``, ``oracle``."""
    return ("none", *(f"fixed-{count}" for count in range(1, draft_tokens + 1)), "adaptive", "oracle")


@dataclass(frozen=True, slots=True)
class Chosen:
    """What an arm does with a step.

    Attributes:
        drafted: drafts scheduled for each request.
        admitted: int64 [R], drafts to verify.
        plan: where there is one.
    """

    drafted: int
    admitted: np.ndarray
    plan: Plan | None = None


class Arm(Protocol):
    """One way to choose; asked once a step and told what came of it."""

    @property
    def counters(self) -> Mapping[str, int]:
        """Fallbacks by name."""
        ...

    def choose(self, step: int, batch: Batch) -> Chosen:
        """Return what to do with the next step."""
        ...

    def observe(self, outcome: StepOutcome, plan: Plan | None) -> None:
        """Learn what became of a step."""
        ...


class OracleArm:
    """Knows the truth and verifies what gains; see ``best_admitted``.

    Args:
        draft_tokens: K.
        clock: prices a step.
    """

    def __init__(self, draft_tokens: int, clock: Clock) -> None:
        self._drafted, self._clock = draft_tokens, clock

    @property
    def counters(self) -> Mapping[str, int]:
        """Nothing can fail."""
        return {}

    def choose(self, step: int, batch: Batch) -> Chosen:
        """Return the best drafts to verify."""

        def seconds(tokens: np.ndarray) -> np.ndarray:
            return self._clock.seconds(batch, tokens, drafting=True)

        return Chosen(self._drafted, best_admitted(batch.accepted, seconds))

    def observe(self, outcome: StepOutcome, plan: Plan | None) -> None:
        """Learn nothing: there is nothing that it does not know."""


class ManagedArm:
    """A verification manager, asked as an engine asks it: publish, plan, assign, observe.

    Args:
        manager: in its mode.
        drafted: drafts scheduled for each request.
    """

    def __init__(self, manager: VerificationManager, drafted: int) -> None:
        self._manager, self._drafted = manager, drafted

    @property
    def counters(self) -> Mapping[str, int]:
        """Fallbacks that the manager counted, by name."""
        return self._manager.counters

    def choose(self, step: int, batch: Batch) -> Chosen:
        """Return the drafts to verify and the plan; nothing is drafted where the manager says so."""
        drafts, _ = self._manager.draft_next(batch.requests, int(batch.kv_lengths.sum()))
        drafted = self._drafted if drafts else 0
        state = self._state(step, batch, drafted)
        if drafted:
            scores = torch.from_numpy(batch.scores_of(drafted))
            self._manager.publish(step, state.slots, state.generations, scores)
        plan = self._manager.plan(state)
        assignment = self._manager.assign(
            plan,
            torch.from_numpy(state.scheduled.astype(np.int32)),
            torch.from_numpy(batch.kv_lengths.astype(np.int32)),
            plan.tokens,
        )
        return Chosen(drafted, assignment.admitted.numpy().astype(np.int64), plan)

    def observe(self, outcome: StepOutcome, plan: Plan | None) -> None:
        """Hand a step to the manager."""
        assert plan is not None  # noqa: S101 - of this arm every step has one
        self._manager.observe(outcome, plan, "simulated")

    def _state(self, step: int, batch: Batch, drafted: int) -> StepState:
        return StepState(
            step=step,
            slots=batch.slots,
            generations=batch.generations,
            scheduled=np.full(batch.requests, drafted),
            emitting=batch.requests,
            kv_tokens=int(batch.kv_lengths.sum()),
            # Recorded text is drawn with noise of its own, whatever is verified: trimming moves no law.
            sampled=False,
        )


def make_arm(
    name: str,
    header: RecordsHeader,
    limits: Limits,
    cost: CostTable,
    tiers: tuple[int, ...],
    *,
    planning: Planning,
    clock: Clock,
    bare: tuple[int, ...] = (),
) -> Arm:
    """Return the arm of a name.

    Args:
        name: one of ``arm_names``.
        header: of the records; says what the drafter's scores have seen.
        limits: R requests of K drafts.
        cost: what the adaptive arm plans with.
        tiers: captured token counts.
        planning: of the managers.
        clock: prices a step, for the oracle.
        bare: request counts of captured steps that draft nothing.

    Raises:
        DescriptorError: there is no such arm.
        CalibrationError: the calibration is not of this signal, pair and K.
    """
    if name not in arm_names(header.draft_tokens):
        raise DescriptorError(
            "there is no such arm",
            arrived=name,
            allowed=", ".join(arm_names(header.draft_tokens)),
            remedy="choose some of them",
        )
    if name == "oracle":
        return OracleArm(header.draft_tokens, clock)
    mode, _, count = name.partition("-")
    drafted = {"none": 0, "fixed": int(count or 0), "adaptive": header.draft_tokens}[mode]
    options = replace(planning.options, mode=mode)
    manager = VerificationManager(
        limits,
        "cpu",
        signal=planning.signal,
        policy=planning.policy,
        cost=CostModel(cost, online=options.online),
        tiers=tiers,
        options=options,
        drafter_seen=Seen[header.seen],
        drafter_deterministic=header.deterministic,
        relay=LaggedRelay(limits, planning.lag),
    )
    manager.set_tiers(tiers, bare)
    if planning.calibration is not None and mode == "adaptive":
        subject = calibration_subject(header.model, header.drafter)
        manager.signal.import_state(planning.calibration, subject)  # type: ignore[attr-defined]
    return ManagedArm(manager, drafted)
