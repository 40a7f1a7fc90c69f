"""The host's half of replayed steps: launch one ahead, hand out what was decided, learn from it."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from adaverify_contracts import EngineError, StepOutcome
from adaverify_engine.batch import Batch
from adaverify_engine.eager import Begun, EagerSteps
from adaverify_engine.emission import Decided, Emission, emit
from adaverify_engine.events import Events, joined
from adaverify_engine.flight import AHEAD, Landed
from adaverify_engine.pipeline import DecodePipeline
from adaverify_engine.request import Event, Request
from adaverify_engine.scheduler import PrefillChunk, Work
from adaverify_engine.stats import EngineStats, PhaseClock
from adaverify_engine.turns import Turns

Read = Landed[Batch]
"""A step of these requests, in row order, whose results are on the host."""


class Ahead:
    """Runs decode steps as replays, each launched before the tokens of the one before are read.

    Prompts are read in steps of their own, begun behind the replays under way and finished after these: the
    host enqueues a prompt's operations while the device decodes.

    Args:
        pipeline: the captured steps.
        eager: begins and finishes steps that read prompts; has what both kinds share.

    Attributes:
        turns: says whether prompts are read next.
    """

    def __init__(self, pipeline: DecodePipeline, eager: EagerSteps) -> None:
        self.pipeline = pipeline
        self.turns = Turns()
        self._eager = eager
        self._scheduler, self._verifier = eager.scheduler, eager.verifier
        # Prompts that are being read, how many replays are to be read before them, and the time of those.
        self._reading: Begun | None = None
        self._before, self._beside = 0, 0.0

    @property
    def under_way(self) -> int:
        """Steps of either kind that were launched and not read."""
        return self.pipeline.under_way + (self._reading is not None)

    def turn(self, work: Work) -> tuple[Work, tuple[PrefillChunk, ...]]:
        """Return what of ``work`` the next step runs, and the prompts that are begun behind it.

        Both together where no replay serves these requests: then the step runs eagerly anyway.
        """
        batch = work.batch
        if not (work.decode and work.chunks) or batch.misses or not self._eager.drafts.serves(batch.slots):
            return work, ()
        decode = Work(batch, ())
        if self._reading is not None:
            return decode, ()
        waiting = int(np.count_nonzero(self._scheduler.running.live)) - len(batch)
        return decode, work.chunks if self.turns.prompts_next(len(batch), waiting) else ()

    def step(
        self, work: Work, prompts: tuple[PrefillChunk, ...], stats: EngineStats, clock: PhaseClock
    ) -> Sequence[Event] | None:
        """Launch ahead and hand out the oldest step under way; None when the next step must run eagerly.

        Args:
            work: what the scheduler wants to run.
            prompts: begun behind it.
            stats: counted into.
            clock: phases of the step.
        """
        if work.decode and not work.chunks and self._ready(work.batch):
            while self.under_way < AHEAD:
                batch = self.pipeline.continuing(work.batch, self._scheduler)
                if not len(batch) or not self._launch(batch):
                    break
            clock.mark("plan")
        if prompts:
            self._read_prompts(prompts, clock)
        if not self.under_way:
            return None
        taken = [self._take(stats, clock)]
        if self._scheduler.idle:
            while self.under_way:
                taken.append(self._take(stats, clock))
        return joined(taken)

    def _launch(self, batch: Batch) -> bool:
        started, numbers = perf_counter(), self._eager.numbers
        state, plan = self.pipeline.plan(numbers.next, batch, self._scheduler)
        # A step that runs and that nobody knows of would lose its tokens.
        with self._eager.whole():
            launched = self.pipeline.launch(state, plan, batch, started)
            numbers.next += launched
        return launched

    def _ready(self, batch: Batch) -> bool:
        missed = batch.misses if self._eager.drafts.serves(batch.slots) else "replay-missed-drafter"
        if missed:
            self._verifier.manager.note(self._eager.numbers.next, missed)
        return not missed

    def _read_prompts(self, prompts: tuple[PrefillChunk, ...], clock: PhaseClock) -> None:
        """Begin to read ``prompts`` behind the replays under way."""
        flight = self.pipeline.flight
        self._before, self._beside = len(flight), flight.seconds_left()
        nobody = self._scheduler.batch(np.zeros(0, dtype=np.int64))
        self._reading = self._eager.begin(Work(nobody, prompts), clock)
        flight.leave()

    def _take(self, stats: EngineStats, clock: PhaseClock) -> Events:
        """Return what the oldest step under way emitted."""
        if self._reading is not None and not self._before:
            return self._take_prompts(self._reading, stats, clock)
        landed = self.pipeline.read()
        clock.mark("forward")
        # Rows of requests that ended in the step before are dropped.
        alive = self._scheduler.running.holds(landed.state.slots, landed.state.generations)
        with self._eager.whole():
            emission, judged = self._hand_out(landed, alive, stats)
            self.pipeline.drop()
            self._before = max(0, self._before - 1)
        clock.mark("accept")
        outcome = _outcome(landed, alive, judged, emission.tokens)
        self._verifier.observe(outcome, landed.plan)
        self.turns.ran(landed.seconds or 0.0, prompts=False)
        stats.count(outcome, alive)
        clock.mark("observe")
        return emission.events

    def _take_prompts(self, begun: Begun, stats: EngineStats, clock: PhaseClock) -> Events:
        flight = self.pipeline.flight
        # What lies there already has come at a time that nobody knows.
        waited = begun.decided is not None and not begun.decided.arrived
        try:
            decided = self._eager.wait(begun, clock)
        except EngineError:
            # Its requests stand where they stood: the next step may begin it again.
            self._reading = None
            raise
        self._reading = None
        if waited:
            # The device runs the next replay from here on, whatever the host does.
            flight.resume()
        else:
            # The device may have begun it long ago, or be at the prompts still.
            flight.leave()
        events = self._eager.hand_out(begun, decided, stats, clock, self._beside)
        self.turns.ran(max(0.0, clock.last - begun.started - self._beside), prompts=True)
        return events

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
        running, counts, drafts = self._scheduler.running, decided.accepted + 1, self._eager.drafts
        running.computed[slots] += counts
        running.steps[slots] += 1
        emission = emit(running, requests, slots, decided, None)
        if not emission.ended:
            drafts.advanced_rows(slots, counts)
            return emission
        on = np.ones(len(slots), dtype=bool)
        on[emission.ended] = False
        drafts.advanced_rows(slots[on], counts[on])
        self.pipeline.forget(slots[emission.ended])
        self._eager.retire([requests[row] for row in emission.ended], step)
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
        host_seconds=landed.host_seconds,
        keys=rows.keys,
        judged=judged,
    )
