"""The reference decode engine: add requests, step, read events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

from adaverify_contracts import (
    BlockDrafter,
    DeviceDrafter,
    Drafter,
    EngineError,
    GraphKey,
    LoadedModel,
)
from adaverify_engine.ahead import Ahead
from adaverify_engine.draft_source import DraftSource
from adaverify_engine.drafters.reading import ReadingDrafter
from adaverify_engine.eager import EagerSteps, StepNumbers
from adaverify_engine.executor import Executor
from adaverify_engine.options import EngineOptions, Sampling
from adaverify_engine.parts import require_parts
from adaverify_engine.pipeline import DecodePipeline
from adaverify_engine.request import Completion, Event, FinishReason, Request, make_request
from adaverify_engine.row_tiers import row_tiers
from adaverify_engine.scheduler import Scheduler
from adaverify_engine.stats import EngineStats, PhaseClock

if TYPE_CHECKING:
    from adaverify_graphs import CaptureReport
    from adaverify_runtime import Verifier

CaptureProgress = Callable[[int, int, GraphKey], None]


class Engine:
    """Continuous batching over paged KV with adaptive verification.

    A step: propose drafts, publish their scores, plan the budget, assign it, run the model once over decode
    tokens and prefill chunks, accept, emit, tell drafter and verifier. The modes ``none``, ``fixed`` and
    ``adaptive`` are the verifier's; here they differ in nothing but the plan, and in ``none`` the drafter is
    not asked.

    A step that raises before its tokens are handed out, an interrupt included, changes no request: step
    again. A drafter that fails costs its step the drafts (``DraftSource``), a tokenizer that fails ends the
    request it failed for (``FinishReason.FAILED``), counted as ``request-failed``. An interrupt between
    handing out the first and the last token of a step, or while a captured step is launched, leaves an engine
    that refuses further steps; completions can still be taken.

    Not thread-safe; one engine, one thread.

    Args:
        model: target and tokenizer, on ``options.device`` in ``options.dtype``.
        verifier: assembled for ``options.limits``.
        drafter: made for ``options.limits``; a ``BlockDrafter`` is bound to the model here.
        options: sizes.

    Raises:
        EngineError: a part has the wrong type or lacks a method, the verifier or the model does not fit the
            options, or the drafter not the model.
    """

    def __init__(
        self, model: LoadedModel, verifier: Verifier, drafter: Drafter | BlockDrafter, options: EngineOptions
    ) -> None:
        require_parts(model, verifier, drafter, options)
        geometry = model.model.geometry
        if verifier.limits != options.limits:
            raise EngineError(
                "the verifier was assembled for other limits than the engine's",
                arrived=verifier.limits,
                allowed=repr(options.limits),
                remedy="assemble the verifier with EngineOptions.limits",
            )
        if options.max_model_len > geometry.max_model_len:
            raise EngineError(
                f"max_model_len is longer than {geometry.name} was trained for",
                arrived=options.max_model_len,
                allowed=f"at most {geometry.max_model_len}",
                remedy="lower max_model_len",
            )
        self._model, self._verifier, self._options = model, verifier, options
        self._geometry = geometry
        self._torn = False
        self._ahead: Ahead | None = None
        self._prompt_captures: CaptureReport | None = None
        self._executor = Executor(model.model, options)
        if torch.device(options.device).type == "cpu":
            # Until steps are captured; between two of these a budget costs nothing.
            verifier.manager.set_tiers(row_tiers(options.max_requests, options.draft_tokens))
        self._scheduler = Scheduler(options)
        if isinstance(drafter, BlockDrafter):
            reads = verifier.manager.mode != "none" and options.draft_tokens > 0
            drafter = ReadingDrafter(drafter, self._executor, reads=reads)
        self._reader = drafter if isinstance(drafter, ReadingDrafter) else None
        self._drafts = DraftSource(drafter, options, geometry.vocabulary)
        self._eager = EagerSteps(
            self._executor,
            self._scheduler,
            self._drafts,
            self._reader,
            verifier,
            self._retire,
            self._whole,
            StepNumbers(),
        )
        self._done: dict[int, Completion] = {}
        self._next_id = 0
        self.stats = EngineStats()

    @property
    def options(self) -> EngineOptions:
        """Sizes this engine was made with."""
        return self._options

    @property
    def verifier(self) -> Verifier:
        """The verifier that plans its steps."""
        return self._verifier

    @property
    def drafter(self) -> Drafter:
        """The drafter that proposes for it."""
        return self._drafts.drafter

    @property
    def executor(self) -> Executor:
        """Cache, step buffers and the model pass; for profiling and tests."""
        return self._executor

    @property
    def pipeline(self) -> DecodePipeline | None:
        """The captured decode steps, None while steps run eagerly."""
        return None if self._ahead is None else self._ahead.pipeline

    @property
    def prompt_captures(self) -> CaptureReport | None:
        """What ``capture`` captured of the pass over prompts, None where nothing was tried."""
        return self._prompt_captures

    @property
    def model(self) -> LoadedModel:
        """Target and tokenizer."""
        return self._model

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return self._scheduler.idle

    @property
    def free_pages(self) -> int:
        """KV pages nobody owns."""
        return self._scheduler.free_pages

    def reset_stats(self) -> None:
        """Start counting anew."""
        self.stats = EngineStats()

    def add(self, prompt: Sequence[int], sampling: Sampling | None = None) -> int:
        """Queue a request and return its id.

        Args:
            prompt: token ids, at least one; with one emitted token it must fit ``max_model_len``. The output
                is cut at ``max_model_len`` if ``max_tokens`` would run past it.
            sampling: greedy defaults when None.

        Raises:
            EngineError: the prompt is empty, holds an id outside the vocabulary, is too long, or the request
                can never fit the KV pool; the message has the numbers.
        """
        request = make_request(self._next_id, prompt, sampling, self._options, self._model)
        self._scheduler.submit(request)
        self._next_id += 1
        return request.id

    def run(self) -> dict[int, Completion]:
        """Step until nothing is left; return completions that were not taken yet, by id."""
        while not self._scheduler.idle:
            self.step()
        return self.take()

    def take(self) -> dict[int, Completion]:
        """Return and forget the completions of finished requests, by id."""
        done, self._done = self._done, {}
        return done

    @torch.inference_mode()
    def capture(
        self, progress: CaptureProgress | None = None, *, bare: bool | None = None
    ) -> CaptureReport | None:
        """Capture whole decode steps: from now on one is a single replay; None when nothing captures.

        The verifier must capture and the drafter propose on the device (``DeviceDrafter``). The model's pass
        over prompts is captured as well, at sizes of its own. Requests that want log-probabilities or have
        penalties, and sizes without a graph still run eagerly, counted by reason.

        In mode ``adaptive`` a few steps that draft nothing are captured too: they run while drafting loses
        against plain decoding (``draft_next``).

        Args:
            progress: called as ``progress(done, total, key)`` before each size.
            bare: whether drafting-free steps are captured; as the mode needs when None. To profile them.
        """
        drafter = self._drafts.drafter
        if not self._verifier.captures or not isinstance(drafter, DeviceDrafter):
            return None
        pipeline = DecodePipeline(self._executor, self._verifier, drafter, self._options)
        adaptive = self._verifier.manager.mode == "adaptive"
        report = pipeline.capture(progress, bare=adaptive if bare is None else bare)
        if report is not None and report.captured:
            self._ahead = Ahead(pipeline, self._eager)
            if self._verifier.graphs is not None:
                self._prompt_captures = self._executor.capture_prompts(self._verifier.graphs)
        return report

    @torch.inference_mode()
    def step(self) -> Sequence[Event]:
        """Run one step; return what was emitted, decode requests first. Empty when there is nothing to do.

        With captured steps the next one is launched before this one's tokens are read, and prompts are read
        in steps of their own (``Turns``), begun while others run. The events are made when they are looked
        at.

        Raises:
            EngineError: the model broke its contract, or returned logits that are not finite, or an earlier
                step was interrupted while tokens were handed out.
        """
        clock = PhaseClock(self.stats.seconds)
        with self._whole():
            started = self._scheduler.admit()
        if started:
            self._begin(started)
        work = self._scheduler.work()
        if self._ahead is not None:
            work, prompts = self._ahead.turn(work)
            replayed = self._ahead.step(work, prompts, self.stats, clock)
            if replayed is not None:
                return replayed
        if not work.decode and not work.chunks:
            return []
        events = self._eager.finish(self._eager.begin(work, clock), self.stats, clock)
        if self._ahead is not None:
            self._ahead.turns.ran(clock.elapsed, prompts=bool(work.chunks))
        return events

    def _begin(self, started: list[Request]) -> None:
        """Tell the drafter of requests that were given a slot."""
        slots = np.array([request.slot for request in started], dtype=np.int64)
        self._drafts.start_rows(slots, [request.prompt for request in started])
        if self._reader is not None:
            temperatures = self._scheduler.running.temperature[slots]
            self._reader.place_rows(slots, self._scheduler.block_table[slots], temperatures)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Mark bookkeeping that must not stop half-way; refuse to go on where it did."""
        if self._torn:
            raise EngineError(
                "an earlier step was interrupted while tokens were handed out",
                allowed="an engine whose steps were finished",
                remedy="take the completions, and make a new engine for the rest",
            )
        self._torn = True
        yield
        self._torn = False

    def _retire(self, requests: Sequence[Request], step: int) -> None:
        """End requests that have their finish reasons."""
        for request in requests:
            assert request.finished is not None  # noqa: S101 - our own state
            if request.finished is FinishReason.FAILED:
                self._verifier.manager.note(step, "request-failed")
            self._scheduler.release(request)
            self._done[request.id] = request.completion(request.finished)
        self._drafts.stop_rows(np.array([request.slot for request in requests], dtype=np.int64))
