"""A verifier with its captured steps for one number of requests; every arm of ours runs on it."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from adaverify.bench.endtoend.ground import Ground
from adaverify.bench.endtoend.sources import MadeBody
from adaverify.bench.endtoend.stamps import Stamps
from adaverify_contracts import EngineError, Plan, StepState
from adaverify_engine.flight import Flight
from adaverify_engine.recorded import RecordedState, RecordedStep
from adaverify_engine.results import ResultRing
from adaverify_graphs import CaptureReport
from adaverify_runtime import Verifier, assemble
from adaverify_verification import CostModel, CostTable


def wanted_tiers(requests: int, drafts: int) -> tuple[int, ...]:
    """Return token counts to tell arms apart by: every fixed K, halves, quarters at the low end."""
    steps = {4 * k for k in range(1, drafts + 2)}
    if requests >= 2:
        steps |= {4 * k + 2 for k in range(1, drafts + 1)}
    if requests >= 16:
        steps |= {5, 7}
    return tuple(sorted({requests * step // 4 for step in steps}))


def tier_of(tiers: Sequence[int], tokens: int) -> int:
    """Return the smallest tier that holds ``tokens``, or ``tokens`` past the last."""
    at = bisect_left(tiers, tokens)
    return tiers[at] if at < len(tiers) else tokens


def at_budget(plan: Plan, budget: int, tiers: Sequence[int]) -> Plan:
    """Return ``plan`` with another budget; predictions go, since they were of the other one."""
    if budget == plan.budget:
        return plan
    tokens = plan.certain_tokens + budget
    full = budget == plan.scheduled and plan.requests > 0
    length = 1 + budget // plan.requests if full or budget == 0 else None
    return replace(
        plan,
        reason="the budget was given",
        budget=budget,
        tokens=tokens,
        tier=tier_of(tiers, tokens),
        uniform_query_len=length if plan.requests else None,
        predicted_seconds=None,
        full_seconds=None,
    )


@dataclass(frozen=True, slots=True)
class Curve:
    """Step times of one number of requests: int64 tiers >= R, and float64 seconds, never falling."""

    tiers: np.ndarray
    seconds: np.ndarray

    def price(self, tokens: np.ndarray) -> np.ndarray:
        """Return seconds, float64, of steps of ``tokens`` query tokens before padding."""
        found: np.ndarray = self.seconds[np.searchsorted(self.tiers, tokens)]
        return found


class Deck:
    """Captures whole recorded steps of ``requests`` requests.

    Args:
        ground: device, records, settings.
        requests: R; every request decodes in every step.
        context: KV length that requests start with; the ground's when None.
        strategy: decode strategy by name; the best one when None.
        made: the model with its caches; the ground's when None.
        tiers: token counts to capture; ``wanted_tiers`` when None.
        level: graph level of the settings; the highest available when None.
        stamps: marks the model, or the whole, of every captured step; none are there when None.

    Raises:
        EngineError: nothing could be captured, or a size that is needed failed.
    """

    def __init__(
        self,
        ground: Ground,
        requests: int,
        *,
        context: int | None = None,
        strategy: str | None = None,
        made: MadeBody | None = None,
        tiers: tuple[int, ...] | None = None,
        level: str | None = None,
        stamps: Stamps | None = None,
    ) -> None:
        self.ground, self.requests = ground, requests
        self.context = ground.context if context is None else context
        self.limits = ground.limits(requests, self.context)
        made = ground.body() if made is None else made
        self.body = made.body if stamps is None else stamps.body(made.body)
        wanted = wanted_tiers(requests, self.limits.draft_tokens) if tiers is None else tiers
        with _unpriced_for_now():
            self.verifier: Verifier = assemble(
                self.limits,
                device=ground.device,
                mode="adaptive",
                settings=ground.settings_for(self.limits, wanted, level),
                plugins=ground.plugins,
                capability=ground.options.capability,
                strategy=strategy,
            )
        text = ground.text
        self.state = RecordedState(self.limits, ground.device, text.scores, text.accepted, self.context)
        self.state.pages(made.table[:requests])
        self.ring = ResultRing(self.limits, ground.device)
        self.flight: Flight[np.ndarray | None] = Flight(self.verifier, self.ring)
        step = RecordedStep(self.body, self.verifier, self.state, self.ring.device_results)
        run, prologue = (step.run, step.prologue) if stamps is None else stamps.around(step)
        report = self.verifier.capture(run, dict.fromkeys(wanted, 1.0), prologue=prologue)
        self.report = _complete(report)
        self.tiers = tuple(tier for tier in self.verifier.tiers if tier >= requests)
        self._slots = np.arange(requests, dtype=np.int64)
        self._generations = np.zeros(requests, dtype=np.int64)
        self._step = 0

    def price(self, table: CostTable) -> Curve:
        """Plan by ``table`` from now on, and return its curve for these requests."""
        manager = self.verifier.manager
        manager.cost = CostModel(table, online=manager.options.online)
        manager.set_tiers(self.verifier.tiers)
        return self.curve(table)

    def curve(self, table: CostTable) -> Curve:
        """Return step times of the tiers by ``table``."""
        model = CostModel(table, self.tiers, online=False)
        tiers = np.array(self.tiers, dtype=np.int64)
        return Curve(tiers, model.executed_seconds(tiers, self.requests, float(self.context)))

    def open_round(self, starts: np.ndarray, *, fresh: bool = False) -> None:
        """Stand everybody at ``starts`` int64 [R].

        Args:
            starts: first positions.
            fresh: whether these are new requests to the manager. It knows nothing of them then, neither the
                confidences of the arm before nor those of its own last round.
        """
        size = len(self.ground.text.accepted)
        zeros = np.zeros(self.requests, dtype=np.int64)
        self.state.reset(starts, zeros, zeros + size)
        if fresh:
            self._generations = self._generations + 1

    def next_state(self, scheduled: int) -> StepState:
        """Return the next step: everybody decodes with ``scheduled`` drafts."""
        self._step += 1
        return StepState(
            step=self._step,
            slots=self._slots,
            generations=self._generations,
            scheduled=np.full(self.requests, scheduled, dtype=np.int64),
            emitting=self.requests,
            kv_tokens=self.requests * self.context,
        )

    def launch(self, state: StepState, plan: Plan, prefix: np.ndarray | None, started: float) -> None:
        """Launch a step that was planned from clock time ``started`` on.

        Args:
            state: the step; plan: its plan.
            prefix: int64 [R], what a forced step was told to admit; None where it has a budget.
            started: clock time at which its planning began.

        Raises:
            EngineError: no captured size serves the plan.
        """
        if not self.flight.launch(state, plan, prefix, started):
            raise EngineError(
                "no captured size serves this step",
                arrived=f"{plan.requests} requests, budget {plan.budget}",
                allowed=f"tokens up to one of the tiers {self.verifier.tiers}",
                remedy="capture a ladder that ends at the largest batch",
            )

    def close(self) -> None:
        """Give back graphs and buffers."""
        self.verifier.close()
        self.ground.release()


@contextmanager
def _unpriced_for_now() -> Iterator[None]:
    """Leave out the warning that there are no step times: a deck measures them, or is given them later."""
    logger = logging.getLogger("adaverify_verification.manager")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _complete(report: CaptureReport | None) -> CaptureReport:
    if report is None or report.failed:
        arrived = "nothing captures here" if report is None else str(report.failed[0])
        raise EngineError(
            "the recorded steps were not all captured",
            arrived=arrived,
            allowed="every size of the ladder",
            remedy="see `adaverify doctor`, or cure the cause",
        )
    return report
