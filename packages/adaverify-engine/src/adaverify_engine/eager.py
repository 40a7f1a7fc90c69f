"""Steps that run operation by operation: decode requests, prompts, or both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from adaverify_contracts import DraftBatch, Plan, StepOutcome, StepState
from adaverify_engine.arriving import Arriving
from adaverify_engine.draft_source import DraftSource
from adaverify_engine.drafters.reading import ReadingDrafter
from adaverify_engine.emission import Decided, Emission, emit
from adaverify_engine.events import Events
from adaverify_engine.executor import Executor, Passed
from adaverify_engine.request import Request
from adaverify_engine.scheduler import Scheduler, Work
from adaverify_engine.stats import EngineStats, PhaseClock

if TYPE_CHECKING:
    from adaverify_runtime import Staged, Verifier


@dataclass(slots=True)
class StepNumbers:
    """Numbers of steps, of whatever kind.

    Attributes:
        next: the number of the next step.
    """

    next: int = 0


@dataclass(frozen=True, slots=True)
class Begun:
    """A step whose operations are enqueued and whose tokens are not handed out.

    Attributes:
        work: what it runs; judged: whose tokens it decides, decode requests first.
        drafts: of the decode requests; state: the step; plan: its plan.
        passed: logits and features; decided: the verdict; admitted: int64 [S], drafts that were verified.
        started: clock time.
    """

    work: Work
    judged: tuple[Request, ...]
    drafts: DraftBatch
    state: StepState
    plan: Plan
    passed: Passed
    decided: Arriving | None
    admitted: np.ndarray
    started: float


@dataclass(frozen=True, slots=True)
class EagerSteps:
    """Begins steps, which enqueues all of their operations, and finishes them, which waits for their tokens.

    A step that was begun and is not finished has changed no request: it can be forgotten and begun again.

    Attributes:
        executor: model, cache and step buffers; scheduler: who runs, and where.
        drafts: asked for drafts, and told what became of them.
        reader: the same drafter where it reads the target, else None.
        verifier: plans, stages and learns.
        retire: ends requests that have their finish reasons, in the step of that number.
        whole: marks bookkeeping that must not stop half-way.
        numbers: of all steps.
    """

    executor: Executor
    scheduler: Scheduler
    drafts: DraftSource
    reader: ReadingDrafter | None
    verifier: Verifier
    retire: Callable[[Sequence[Request], int], None]
    whole: Callable[[], AbstractContextManager[None]]
    numbers: StepNumbers

    def begin(self, work: Work, clock: PhaseClock) -> Begun:
        """Draft, plan and enqueue ``work``; with no decode requests the device is not waited for."""
        started = clock.last
        batch = self._draft(work)
        clock.mark("draft")
        state = self._state(work, batch)
        plan, staged = self._plan(work, batch, state)
        clock.mark("plan")
        scheduler, longest = self.scheduler, self._width + 1
        longest += int(scheduler.running.computed[work.batch.slots].max(initial=0))
        passed = self.executor.forward(work, staged, plan, scheduler.block_table, longest)
        judged = work.decode + tuple(chunk.request for chunk in work.finals)
        decided, admitted = None, np.zeros(0, dtype=np.int64)
        if judged:
            verdict, admitted = self.executor.judge(passed.logits, judged, batch, staged, scheduler.running)
            decided = Arriving(verdict)
        clock.mark("forward")
        self.numbers.next += 1
        return Begun(work, judged, batch, state, plan, passed, decided, admitted, started)

    def finish(self, begun: Begun, stats: EngineStats, clock: PhaseClock) -> Events:
        """Wait for the tokens of a step and hand them out.

        Raises:
            EngineError: the model returned logits that are not finite.
        """
        return self.hand_out(begun, self.wait(begun, clock), stats, clock)

    def wait(self, begun: Begun, clock: PhaseClock) -> Decided:
        """Wait for what a step decided; one that decides nothing is not waited for.

        Raises:
            EngineError: the model returned logits that are not finite.
        """
        decided = self._nothing() if begun.decided is None else begun.decided.decided()
        clock.mark("forward")
        return decided

    def hand_out(
        self, begun: Begun, decided: Decided, stats: EngineStats, clock: PhaseClock, beside: float = 0.0
    ) -> Events:
        """Hand out what a step decided.

        Args:
            begun: the step; decided: what ``wait`` returned.
            stats: counted into.
            clock: phases of the step.
            beside: seconds since it began that others had the device.
        """
        with self.whole():
            emission = self._advance(begun, decided, stats)
        clock.mark("accept")
        self._observe(begun, decided, emission, max(0.0, clock.last - begun.started - beside), stats)
        clock.mark("observe")
        return emission.events

    @property
    def _width(self) -> int:
        return self.executor.options.draft_tokens

    def _draft(self, work: Work) -> DraftBatch:
        """Return this step's drafts; one that could not be emitted in full is not scheduled."""
        if not self._drafts_now(work):
            return self.drafts.nothing(len(work.decode))
        room = np.minimum(self.scheduler.running.room(work.batch.slots) - 1, self._width)
        return self.drafts.propose(work.batch.slots.tolist(), room)

    def _drafts_now(self, work: Work) -> bool:
        """Return whether this step drafts; asked once a step, and never in mode ``none``."""
        if not work.decode or self._width == 0:
            return False
        if self.verifier.bare_tiers:
            # Prices of replays say nothing of a step that is none.
            return True
        held = self.scheduler.kv_tokens(work.batch.slots)
        return self.verifier.manager.draft_next(len(work.decode), held)[0]

    def _state(self, work: Work, drafts: DraftBatch) -> StepState:
        batch = work.batch
        return StepState(
            step=self.numbers.next,
            slots=batch.slots,
            generations=batch.generations,
            scheduled=drafts.scheduled,
            emitting=len(work.decode) + len(work.finals),
            other_tokens=sum(chunk.length for chunk in work.chunks),
            kv_tokens=self.scheduler.kv_tokens(work.batch.slots),
            sampled=batch.any_sensitive,
            sampled_requests=batch.sensitive,
        )

    def _plan(self, work: Work, batch: DraftBatch, state: StepState) -> tuple[Plan, Staged | None]:
        rows, buffers, slots = len(work.decode), self.executor.buffers, work.batch.slots
        if rows:
            running, table = self.scheduler.running, self.scheduler.block_table[slots]
            buffers.load(running.newest(slots), running.computed[slots], batch, table)
            self.verifier.publish(state.step, state.slots, state.generations, batch.scores)
        plan = self.verifier.plan(state)
        if not rows:
            return plan, None
        # Padded where a captured size would be, except with a prefill chunk. A CPU's rows are padded below.
        padded = self.verifier.tiers and not work.chunks
        tokens = plan.tier if padded else rows + plan.budget
        staged = self.verifier.stage(
            plan,
            buffers.scheduled[:rows],
            buffers.kv_lens[:rows],
            buffers.block_table[:rows],
            padded_tokens=min(tokens, self.executor.options.limits.max_tokens),
        )
        return plan, staged

    def _nothing(self) -> Decided:
        tokens = np.zeros((0, self._width + 1), dtype=np.int64)
        return Decided(tokens[:, 0], tokens, tokens.astype(np.float32))

    def _advance(self, begun: Begun, decided: Decided, stats: EngineStats) -> Emission:
        """Move every request on: KV lengths, tokens, features, drafter, slots."""
        running, work, passed = self.scheduler.running, begun.work, begun.passed
        rows = len(work.decode)
        for chunk in work.chunks:
            running.computed[chunk.request.slot] += chunk.length
            stats.prompt_tokens += chunk.length
        finals = [request.slot for request in begun.judged[rows:]]
        slots = np.concatenate((work.batch.slots, np.array(finals, dtype=np.int64)))
        if self.reader is not None and passed.features is not None and decided.rows is not None:
            last = decided.rows[np.arange(len(slots)), decided.accepted]
            self.reader.keep(slots, passed.features, last)
        running.computed[work.batch.slots] += 1 + decided.accepted[:rows]
        running.steps[work.batch.slots] += 1
        emission = emit(running, begun.judged, slots, decided, passed.logits)
        stats.discarded += emission.cut
        on = np.ones(len(slots), dtype=bool)
        on[emission.ended] = False
        self.drafts.extend_rows(slots[on], decided.tokens[on], emission.kept[on])
        if emission.ended:
            self.retire([begun.judged[row] for row in emission.ended], begun.state.step)
        return emission

    def _observe(
        self, begun: Begun, decided: Decided, emission: Emission, seconds: float, stats: EngineStats
    ) -> None:
        state, batch, rows = begun.state, begun.drafts, begun.work.batch
        requests = state.requests
        accepted = decided.accepted[:requests].astype(np.int64)
        outcome = StepOutcome(
            step=state.step,
            slots=state.slots,
            generations=state.generations,
            drafted=batch.scheduled,
            admitted=begun.admitted[:requests],
            accepted=accepted,
            scores=_on_host(batch.scores),
            learn=rows.teaches,
            sampled=rows.sampled,
            emitted=emission.tokens,
            seconds=seconds,
            keys=rows.keys,
            judged=emission.judged(batch.scheduled, accepted),
        )
        for name in (*self.drafts.take_faults(), *self.executor.take_fallbacks()):
            self.verifier.manager.note(state.step, name)
        self.verifier.observe(outcome, begun.plan)
        stats.count(outcome, np.ones(requests, dtype=bool))


def _on_host(scores: torch.Tensor) -> np.ndarray:
    """Return ``scores`` [R, K] on the host; without rows nothing is waited for."""
    if len(scores):
        return scores.cpu().numpy()
    return np.zeros(scores.shape, dtype=np.float32)
