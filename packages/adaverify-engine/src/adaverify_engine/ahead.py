"""The host's half of replayed steps: launch one ahead, hand out what was decided, learn from it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from adaverify_contracts import StepOutcome
from adaverify_engine.draft_source import DraftSource
from adaverify_engine.emission import Decided, emit
from adaverify_engine.flight import AHEAD, Landed
from adaverify_engine.pipeline import DecodePipeline
from adaverify_engine.request import Event, Request
from adaverify_engine.scheduler import Scheduler, Work
from adaverify_engine.stats import EngineStats, PhaseClock

if TYPE_CHECKING:
    from adaverify_runtime import Verifier

Batch = Landed[tuple[Request, ...]]
"""A step of these requests, in row order, whose results are on the host."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """Runs decode steps as replays, each launched before the tokens of the one before are read.

    Attributes:
        pipeline: the captured steps.
        scheduler: who runs, and where.
        drafts: told how far the device has moved each request on.
        verifier: learns from every step.
        retire: ends a request that has its finish reason, in the step of that number.
        whole: marks bookkeeping that must not stop half-way.
    """

    pipeline: DecodePipeline
    scheduler: Scheduler
    drafts: DraftSource
    verifier: Verifier
    retire: Callable[[Request, int], None]
    whole: Callable[[], AbstractContextManager[None]]

    def step(
        self, step: int, work: Work, stats: EngineStats, clock: PhaseClock
    ) -> tuple[list[Event] | None, int]:
        """Launch ahead and hand out the oldest step under way.

        Args:
            step: number of the next step.
            work: what the scheduler wants to run.
            stats: counted into.
            clock: phases of the step.

        Returns:
            What was emitted, None when the next step must run eagerly; and how many steps were launched.
        """
        launched = 0
        if work.decode and not work.chunks and self._ready(step, work):
            while self.pipeline.under_way < AHEAD:
                requests = self.pipeline.continuing(work.decode)
                if not requests or not self._launch(step + launched, requests):
                    break
                launched += 1
            clock.mark("plan")
        if not self.pipeline.under_way:
            return None, launched
        events = self._take(stats, clock)
        if self.scheduler.idle:
            while self.pipeline.under_way:
                events += self._take(stats, clock)
        return events, launched

    def _launch(self, step: int, requests: tuple[Request, ...]) -> bool:
        started = perf_counter()
        state, plan = self.pipeline.plan(step, requests, self.scheduler)
        # A step that runs and that nobody knows of would lose its tokens.
        with self.whole():
            return self.pipeline.launch(state, plan, requests, started)

    def _ready(self, step: int, work: Work) -> bool:
        if not self.drafts.serves([request.slot for request in work.decode]):
            self.verifier.manager.note(step, "replay-missed-drafter")
        elif any(request.sampling.logprobs for request in work.decode):
            self.verifier.manager.note(step, "replay-missed-logprobs")
        elif any(request.sampling.penalised for request in work.decode):
            self.verifier.manager.note(step, "replay-missed-penalties")
        else:
            return True
        return False

    def _take(self, stats: EngineStats, clock: PhaseClock) -> list[Event]:
        landed = self.pipeline.read()
        clock.mark("forward")
        alive = np.array([request.finished is None for request in landed.rows], dtype=bool)
        judged = landed.state.scheduled.copy()
        with self.whole():
            events = self._hand_out(landed, stats, judged)
            self.pipeline.drop()
        clock.mark("accept")
        outcome = _outcome(landed, alive, judged, sum(len(event.tokens) for event in events))
        self.verifier.observe(outcome, landed.plan)
        stats.count(outcome, alive)
        clock.mark("observe")
        return events

    def _hand_out(self, landed: Batch, stats: EngineStats, judged: np.ndarray) -> list[Event]:
        """Move every request on; rows of requests that ended in the step before are dropped.

        ``judged`` int64 [R], the drafts scheduled, is cut where an accepted one ended its request.
        """
        results = landed.results
        decided = Decided(results.accepted.tolist(), results.tokens.tolist(), [], results.gaps.tolist())
        events = []
        for index, request in enumerate(landed.rows):
            count = decided.accepted[index] + 1
            if request.finished is not None:
                stats.discarded += count
                continue
            request.computed += count
            request.steps += 1
            event, cut = emit(request, decided, index, None)
            events.append(event)
            judged[index] = event.judged(int(judged[index]), count - 1)
            stats.discarded += cut
            if event.finished is None:
                self.drafts.advanced(request.slot, count)
                continue
            self.pipeline.forget(request.slot)
            self.retire(request, landed.state.step)
        return events


def _outcome(landed: Batch, alive: np.ndarray, judged: np.ndarray, emitted: int) -> StepOutcome:
    state, results, requests = landed.state, landed.results, landed.rows
    return StepOutcome(
        step=state.step,
        slots=state.slots,
        generations=state.generations,
        drafted=state.scheduled,
        admitted=results.admitted,
        accepted=results.accepted,
        scores=results.scores,
        # A request that had ended stands on tokens nobody was given: its labels are of another law.
        learn=alive & np.array([request.sampling.teaches for request in requests], dtype=bool),
        sampled=np.array([not request.sampling.greedy for request in requests], dtype=bool),
        emitted=emitted,
        seconds=landed.seconds,
        host_seconds=landed.seconds - landed.waited,
        keys=np.array([request.key for request in requests], dtype=np.int64),
        judged=judged,
    )
