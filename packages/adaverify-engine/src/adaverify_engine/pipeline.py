"""Decode steps as single replays, launched one ahead of what the host has read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import torch

from adaverify_contracts import DeviceDrafter, EngineError, GraphKey, Plan, StepState
from adaverify_engine.batch import Batch
from adaverify_engine.drafters.reading import ReadingDrafter
from adaverify_engine.executor import Executor
from adaverify_engine.flight import Flight, Landed
from adaverify_engine.options import EngineOptions
from adaverify_engine.results import ResultRing
from adaverify_engine.scheduler import Scheduler
from adaverify_engine.slots import SlotInputs
from adaverify_engine.whole_step import WholeStep

if TYPE_CHECKING:
    from adaverify_graphs import CaptureReport
    from adaverify_runtime import Verifier


class DecodePipeline:
    """Launches whole decode steps and reads them later.

    The next step is launched before the last one is read: what it needs of the last one, tokens and lengths,
    is on the device. So a request may have ended in a step while the next already runs with it; its row there
    is computed in vain and thrown away.

    Args:
        executor: model, cache and the captured step's buffers.
        verifier: plans and replays.
        drafter: proposes inside the graph.
        options: of the engine.
    """

    def __init__(
        self, executor: Executor, verifier: Verifier, drafter: DeviceDrafter, options: EngineOptions
    ) -> None:
        device = torch.device(options.device)
        self._verifier, self._options = verifier, options
        self._drafting = verifier.manager.mode != "none" and options.draft_tokens > 0
        self._slots = SlotInputs(options.limits, device)
        ring = ResultRing(options.limits, device)
        self._step = WholeStep(
            executor, verifier, drafter, self._slots, ring.device_results, drafting=self._drafting
        )
        self._flight: Flight[Batch] = Flight(verifier, ring)
        self._device, self._drafter = device, drafter
        # The most requests that a drafting-free graph holds; none until one was captured.
        self._bare_most = 0
        # Whose inputs a slot holds on the device, by generation.
        self._loaded = np.full(options.max_requests, -1, dtype=np.int64)
        # All of it is loaded.
        self._known: Batch | None = None

    @property
    def under_way(self) -> int:
        """Steps launched and not read."""
        return len(self._flight)

    @property
    def flight(self) -> Flight[Batch]:
        """The steps under way and their times."""
        return self._flight

    def capture(
        self, progress: Callable[[int, int, GraphKey], None] | None = None, *, bare: bool = False
    ) -> CaptureReport | None:
        """Capture the sizes that this mode runs; None when the backend does not capture.

        Args:
            progress: called as ``progress(done, total, key)`` before each size.
            bare: also capture drafting-free steps, where there is any drafting.
        """
        limits = self._options.limits
        expected = None
        if not self._drafting:
            expected = {count: 1.0 / count for count in range(1, limits.max_requests + 1)}
        report = self._verifier.capture(
            self._step.run,
            expected,
            progress=progress,
            prologue=self._step.prologue,
            bare=bare and self._drafting,
        )
        self._bare_most = max(self._verifier.bare_tiers, default=0)
        return report

    def continuing(self, batch: Batch, scheduler: Scheduler) -> Batch:
        """Return the requests that the steps under way cannot have brought to their last token."""
        running, slots = scheduler.running, batch.slots
        room = running.most[slots] - running.emitted[slots]
        if not np.count_nonzero(room <= len(self._flight)):
            return batch
        flying = np.zeros(len(running.live), dtype=np.int64)
        for state in self._flight.states:
            flying[state.slots] += running.generations[state.slots] == state.generations
        return scheduler.batch(slots[flying[slots] < room])

    def plan(self, step: int, batch: Batch, scheduler: Scheduler) -> tuple[StepState, Plan]:
        """Return a step and its plan; nothing of it runs yet.

        Args:
            step: step number.
            batch: its requests.
            scheduler: has lengths and pages by slot.
        """
        if batch is not self._known:
            self._load(batch, scheduler.block_table)
        state = self._state(step, batch, scheduler.kv_tokens(batch.slots))
        return state, self._verifier.plan(state)

    def launch(self, state: StepState, plan: Plan, batch: Batch, started: float) -> bool:
        """Launch a planned step; False when no captured size serves it.

        A launch that is interrupted leaves the device a step ahead of what anybody knows of.

        Args:
            state: the step; plan: its plan.
            batch: its requests.
            started: clock time at which its planning began.
        """
        return self._flight.launch(state, plan, batch, started)

    def read(self) -> Landed[Batch]:
        """Wait for the oldest step under way and return what it decided; ``drop`` it once that is handed out.

        Raises:
            EngineError: the model returned logits that are not finite; so does every later call.
        """
        landed = self._flight.read()
        if not landed.results.finite:
            raise EngineError(
                "the model returned logits that are not finite",
                arrived=f"in step {landed.state.step}",
                allowed="finite logits",
                remedy="check the weights and the dtype; run in float32 to find the layer",
            )
        return landed

    def drop(self) -> None:
        """Forget the oldest step under way: its tokens are handed out."""
        self._flight.drop()

    def time(self, steps: Sequence[tuple[StepState, Plan]], context: int, table: np.ndarray) -> float:
        """Return mean seconds of steps of made-up requests, replayed one after the other; for profiling.

        Args:
            steps: states of one number of requests, in slots 0 .. R - 1, with their plans.
            context: KV length of each request.
            table: int32 [max_requests, W], pages by slot.

        Raises:
            EngineError: steps are under way, or no captured size serves a plan.
        """
        requests = steps[0][0].requests
        self.forget(np.arange(requests))
        self._slots.open(requests, context + 2, table)
        if isinstance(self._drafter, ReadingDrafter):
            for slot in range(requests):
                self._drafter.place(slot, table[slot])
        self._drafter.state.length[:requests].fill_(context + 1)
        self._drafter.state.history[:requests].fill_(1)
        self._synchronise()
        begin = perf_counter()
        served = [self._verifier.launch(plan, state) is not None for state, plan in steps]
        self._synchronise()
        seconds = (perf_counter() - begin) / len(steps)
        if self._flight or not all(served):
            raise EngineError(
                "this shape cannot be timed as a replay",
                arrived=f"{requests} requests, budget {steps[0][1].budget}, {self.under_way} steps under way",
                allowed="an idle engine, and a shape that a captured size serves",
                remedy="profile the captured sizes only, before serving",
            )
        return seconds

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def forget(self, slots: np.ndarray) -> None:
        """Drop what is known of the requests in ``slots`` int64 [R]."""
        self._loaded[slots], self._known = -1, None

    def _load(self, batch: Batch, table: np.ndarray) -> None:
        """Bring the inputs of requests that are new to their slots to the device."""
        new = np.flatnonzero(self._loaded[batch.slots] != batch.generations)
        if len(new):
            slots = batch.slots[new]
            self._slots.load([batch.requests[row] for row in new.tolist()], table[slots])
            self._loaded[slots] = batch.generations[new]
        self._known = batch

    def _state(self, step: int, batch: Batch, kv_tokens: int) -> StepState:
        count = len(batch)
        width = self._options.draft_tokens if self._drafts_now(count, kv_tokens) else 0
        return StepState(
            step=step,
            slots=batch.slots,
            generations=batch.generations,
            scheduled=np.full(count, width, dtype=np.int64),
            emitting=count,
            other_tokens=0,
            kv_tokens=kv_tokens,
            sampled=batch.any_sensitive,
            sampled_requests=batch.sensitive,
        )

    def _drafts_now(self, requests: int, kv_tokens: int) -> bool:
        """Return whether a step drafts; asked once a step, and only where another graph would not.

        Decided from prices and past steps alone, so it does not wait for the step under way. A step is
        planned for the drafts that its own graph makes, whichever kind the one before it was.
        """
        if not 0 < requests <= self._bare_most:
            return self._drafting
        return self._verifier.manager.draft_next(requests, kv_tokens)[0]
