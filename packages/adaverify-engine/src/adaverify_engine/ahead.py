"""The host's half of replayed steps: launch one ahead, hand out what was decided, learn from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from adaverify_contracts import StepOutcome
from adaverify_engine.batch import Batch
from adaverify_engine.draft_source import DraftSource
from adaverify_engine.emission import Decided, Emission, emit
from adaverify_engine.events import Events, joined
from adaverify_engine.flight import AHEAD, Landed
from adaverify_engine.pipeline import DecodePipeline
from adaverify_engine.request import Event, Request
from adaverify_engine.scheduler import Scheduler, Work
from adaverify_engine.stats import EngineStats, PhaseClock
from adaverify_engine.turns import Turns

if TYPE_CHECKING:
    from adaverify_runtime import Verifier

Read = Landed[Batch]
"""A step of these requests, in row order, whose results are on the host."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """Runs decode steps as replays, each launched before the tokens of the one before are read.

    Attributes:
        pipeline: the captured steps.
        scheduler: who runs, and where.
        drafts: told how far the device has moved each request on.
        verifier: learns from every step.
        retire: ends requests that have their finish reasons, in the step of that number.
        whole: marks bookkeeping that must not stop half-way.
        turns: says whether prompts are read next.
    """

    pipeline: DecodePipeline
    scheduler: Scheduler
    drafts: DraftSource
    verifier: Verifier
    retire: Callable[[Sequence[Request], int], None]
    whole: Callable[[], AbstractContextManager[None]]
    turns: Turns = field(default_factory=Turns)

    def turn(self, work: Work) -> Work:
        """Return what of ``work`` the next step runs: its prompts *or* its decode requests.

        Both where no replay serves these: then the step runs eagerly anyway.
        """
        batch = work.batch
        if not (work.decode and work.chunks) or batch.misses or not self.drafts.serves(batch.slots):
            return work
        waiting = int(np.count_nonzero(self.scheduler.running.live)) - len(batch)
        if self.turns.prompts_next(len(batch), waiting):
            return Work(self.scheduler.batch(batch.slots[:0]), work.chunks)
        return Work(batch, ())

    def step(
        self, step: int, work: Work, stats: EngineStats, clock: PhaseClock
    ) -> tuple[Sequence[Event] | None, int]:
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
        if work.decode and not work.chunks and self._ready(step, work.batch):
            while self.pipeline.under_way < AHEAD:
                batch = self.pipeline.continuing(work.batch, self.scheduler)
                if not len(batch) or not self._launch(step + launched, batch):
                    break
                launched += 1
            clock.mark("plan")
        if not self.pipeline.under_way:
            return None, launched
        taken = [self._take(stats, clock)]
        if self.scheduler.idle:
            while self.pipeline.under_way:
                taken.append(self._take(stats, clock))
        return joined(taken), launched

    def _launch(self, step: int, batch: Batch) -> bool:
        started = perf_counter()
        state, plan = self.pipeline.plan(step, batch, self.scheduler)
        # A step that runs and that nobody knows of would lose its tokens.
        with self.whole():
            return self.pipeline.launch(state, plan, batch, started)

    def _ready(self, step: int, batch: Batch) -> bool:
        missed = batch.misses if self.drafts.serves(batch.slots) else "replay-missed-drafter"
        if missed:
            self.verifier.manager.note(step, missed)
        return not missed

    def _take(self, stats: EngineStats, clock: PhaseClock) -> Events:
        landed = self.pipeline.read()
        clock.mark("forward")
        # Rows of requests that ended in the step before are dropped.
        alive = self.scheduler.running.holds(landed.state.slots, landed.state.generations)
        with self.whole():
            emission, judged = self._hand_out(landed, alive, stats)
            self.pipeline.drop()
        clock.mark("accept")
        outcome = _outcome(landed, alive, judged, emission.tokens)
        self.verifier.observe(outcome, landed.plan)
        self.turns.ran(landed.seconds, prompts=False)
        stats.count(outcome, alive)
        clock.mark("observe")
        return emission.events

    def _hand_out(self, landed: Read, alive: np.ndarray, stats: EngineStats) -> tuple[Emission, np.ndarray]:
        """Move every request that is ``alive`` bool [R] on; return what was handed out.

        With it comes int64 [R], the drafts scheduled, cut where an accepted one ended its request.
        """
        results, state, requests = landed.results, landed.state, landed.rows.requests
        decided, slots = Decided(results.accepted, results.tokens, results.gaps), state.slots
        if np.count_nonzero(alive) == len(alive):
            emission = self._advance(requests, slots, decided, state.step)
            stats.discarded += emission.cut
            return emission, emission.judged(state.scheduled, decided.accepted)
        rows, judged = np.flatnonzero(alive), state.scheduled.copy()
        stats.discarded += int((results.accepted[~alive] + 1).sum())
        decided, slots = decided.of_rows(rows), slots[rows]
        emission = self._advance(tuple([requests[row] for row in rows.tolist()]), slots, decided, state.step)
        stats.discarded += emission.cut
        judged[rows] = emission.judged(judged[rows], decided.accepted)
        return emission, judged

    def _advance(
        self, requests: tuple[Request, ...], slots: np.ndarray, decided: Decided, step: int
    ) -> Emission:
        running, counts = self.scheduler.running, decided.accepted + 1
        running.computed[slots] += counts
        running.steps[slots] += 1
        emission = emit(running, requests, slots, decided, None)
        if not emission.ended:
            self.drafts.advanced_rows(slots, counts)
            return emission
        on = np.ones(len(slots), dtype=bool)
        on[emission.ended] = False
        self.drafts.advanced_rows(slots[on], counts[on])
        self.pipeline.forget(slots[emission.ended])
        self.retire([requests[row] for row in emission.ended], step)
        return emission


def _outcome(landed: Read, alive: np.ndarray, judged: np.ndarray, emitted: int) -> StepOutcome:
    state, results, rows = landed.state, landed.results, landed.rows
    return StepOutcome(
        step=state.step,
        slots=state.slots,
        generations=state.generations,
        drafted=state.scheduled,
        admitted=results.admitted,
        accepted=results.accepted,
        scores=results.scores,
        # A request that had ended stands on tokens nobody was given: its labels are of another law.
        learn=alive & rows.teaches,
        sampled=rows.sampled,
        emitted=emitted,
        seconds=landed.seconds,
        host_seconds=landed.seconds - landed.waited,
        keys=rows.keys,
        judged=judged,
    )
