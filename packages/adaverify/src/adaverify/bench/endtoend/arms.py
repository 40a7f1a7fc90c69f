"""Our arms: they share graphs, batch and records, and differ in who chooses the budget."""

from __future__ import annotations

from time import perf_counter
from typing import Protocol

import numpy as np

from adaverify.bench.endtoend.deck import Curve, Deck, at_budget
from adaverify.bench.endtoend.oracle import best_budget
from adaverify.bench.endtoend.rounds import Seen
from adaverify.bench.endtoend.text import Cursors
from adaverify_contracts import (
    BudgetReads,
    Plan,
    PolicyDescriptor,
    StepOutcome,
    StepState,
    WrongValueError,
)
from adaverify_contracts import Seen as ScoresSaw
from adaverify_engine.flight import AHEAD, Landed
from adaverify_replay.simulate import best_admitted
from adaverify_verification import DRAFTER, CostModel, ManagerOptions, RatioPolicy, VerificationManager

Forced = Landed[np.ndarray | None]
"""A step on the host, with the prefixes int64 [R] that it was told to admit, None where it had a budget."""


class Chooser(Protocol):
    """Plans the steps of one arm.

    Attributes:
        scheduled: drafts that everyone schedules; forced: whether prefixes decide what is admitted.
        fresh: whether the manager is to know nothing of a round's requests when it begins.
    """

    scheduled: int
    forced: bool
    fresh: bool

    def begin(self, starts: np.ndarray) -> None:
        """Begin a round at ``starts``."""
        ...

    def plan(self, state: StepState) -> tuple[Plan, np.ndarray | None]:
        """Return the plan, and the prefixes int64 [R] of a forced step."""
        ...

    def learn(self, landed: Forced) -> None:
        """Take in a finished step."""
        ...


class Adaptive:
    """The system itself; with ``budget`` it plans as ever, and then that budget runs."""

    forced, fresh = False, True

    def __init__(self, deck: Deck, budget: int | None = None) -> None:
        self.scheduled = deck.limits.draft_tokens
        self._verifier, self._budget = deck.verifier, budget

    def begin(self, starts: np.ndarray) -> None:
        """Nothing: a round's requests are new to the manager."""

    def plan(self, state: StepState) -> tuple[Plan, np.ndarray | None]:
        """Ask the verifier."""
        plan = self._verifier.plan(state)
        return plan if self._budget is None else at_budget(plan, self._budget, self._verifier.tiers), None

    def learn(self, landed: Forced) -> None:
        """Let the verifier learn from it."""
        self._verifier.observe(outcome_of(landed), landed.plan)


class Fixed:
    """The first ``drafts`` of everybody, planned by a manager in mode fixed, or none at 0.

    With ``budget`` that many of them run, ranked by confidence.
    """

    forced, fresh = False, False

    def __init__(self, deck: Deck, drafts: int, budget: int | None = None) -> None:
        self.scheduled = drafts
        self._tiers, self._budget = deck.verifier.tiers, budget
        self._manager = plain_manager(deck, "fixed" if drafts else "none")

    def begin(self, starts: np.ndarray) -> None:
        """Nothing."""

    def plan(self, state: StepState) -> tuple[Plan, np.ndarray | None]:
        """Return everything that is scheduled, or the given budget."""
        plan = self._manager.plan(state)
        return plan if self._budget is None else at_budget(plan, self._budget, self._tiers), None

    def learn(self, landed: Forced) -> None:
        """Close the step."""
        self._manager.observe(outcome_of(landed), landed.plan, "recorded")


class Oracle:
    """Knows what will be accepted, by following the records on the host; the device is told what to admit.

    Args:
        deck: captured steps.
        curve: step times.
        ranked: False verifies accepted drafts alone; True keeps the ranking by confidence and chooses the
            budget only.
    """

    forced, fresh = True, False

    def __init__(self, deck: Deck, curve: Curve, *, ranked: bool) -> None:
        self.scheduled = deck.limits.draft_tokens
        self._deck, self._curve, self._ranked = deck, curve, ranked
        self._manager = plain_manager(deck, "fixed")
        self._cursors = Cursors(deck.ground.text, np.zeros(deck.requests, dtype=np.int64))

    def begin(self, starts: np.ndarray) -> None:
        """Follow the round's requests."""
        self._cursors = Cursors(self._deck.ground.text, starts)

    def plan(self, state: StepState) -> tuple[Plan, np.ndarray | None]:
        """Return the best budget of this step and who gets it."""
        cursors, curve = self._cursors, self._curve
        if self._ranked:
            budget, prefix = best_budget(cursors.scores, cursors.truth, curve.tiers, curve.seconds)
        else:
            prefix = best_admitted(cursors.truth, curve.price)
            budget = int(prefix.sum())
        cursors.advance(prefix)
        return at_budget(self._manager.plan(state), budget, self._deck.verifier.tiers), prefix

    def learn(self, landed: Forced) -> None:
        """Learn nothing."""


def plain_manager(deck: Deck, mode: str) -> VerificationManager:
    """Return a manager that plans without prices, on the host alone."""
    return VerificationManager(
        deck.limits,
        "cpu",
        signal=DRAFTER,
        policy=PolicyDescriptor("ratio", BudgetReads.HISTORY, RatioPolicy),
        cost=CostModel(None, online=False),
        tiers=deck.verifier.tiers,
        options=ManagerOptions(mode=mode, online=False),
        drafter_seen=ScoresSaw.PREFIX,
        drafter_deterministic=False,
    )


def outcome_of(landed: Forced) -> StepOutcome:
    """Return what a recorded step did, as the manager learns it."""
    state, results = landed.state, landed.results
    yes = np.ones(state.requests, dtype=bool)
    return StepOutcome(
        step=state.step,
        slots=state.slots,
        generations=state.generations,
        drafted=state.scheduled,
        admitted=results.admitted,
        accepted=results.accepted,
        scores=results.scores,
        learn=yes,
        sampled=~yes,
        emitted=int(results.accepted.sum()) + state.requests,
        seconds=landed.seconds,
        host_seconds=landed.host_seconds,
    )


class OurSteps:
    """Runs one of our arms: a replay a step, launched one ahead."""

    ahead = AHEAD

    def __init__(self, deck: Deck, chooser: Chooser) -> None:
        self._deck, self._chooser = deck, chooser

    def open(self, starts: np.ndarray) -> None:
        """Begin a round."""
        self._deck.open_round(starts, fresh=self._chooser.fresh)
        self._deck.state.control(self._chooser.scheduled, forced=self._chooser.forced)
        self._chooser.begin(starts)

    def __len__(self) -> int:
        """Return the steps under way."""
        return len(self._deck.flight)

    def launch(self) -> None:
        """Plan and launch the next step."""
        started = perf_counter()
        state = self._deck.next_state(self._chooser.scheduled)
        plan, prefix = self._chooser.plan(state)
        if prefix is not None:
            self._deck.state.force(prefix)
        self._deck.launch(state, plan, prefix, started)

    def land(self) -> Seen:
        """Read the oldest step and learn from it.

        Raises:
            WrongValueError: a forced step admitted other drafts than it was told.
        """
        landed = self._deck.flight.land()
        prefix = landed.rows
        admitted, accepted = landed.results.admitted, landed.results.accepted
        if prefix is not None and not np.array_equal(prefix, admitted):
            raise WrongValueError(
                "a forced step admitted other drafts than it was told",
                arrived=f"{int((prefix != admitted).sum())} of {len(prefix)} requests differ",
                allowed="the prefixes that were uploaded",
                remedy="report it with this command; no time was taken",
            )
        self._chooser.learn(landed)
        plan = landed.plan
        return Seen(admitted, accepted, plan.budget, plan.tier, landed.at, landed.waited, plan.lag)

    def positions(self) -> np.ndarray:
        """Return int64 [R], where the device says that each request stands; waits."""
        cursor = self._deck.state.slots.cursor[: self._deck.requests]
        return cursor.cpu().numpy().astype(np.int64)
