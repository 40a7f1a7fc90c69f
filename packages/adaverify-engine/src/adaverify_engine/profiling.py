"""The engine's cost table: whole decode steps of every shape, run for real."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from adaverify_contracts import Capability, DraftBatch, EngineError, ModelGeometry, Plan, StepState
from adaverify_contracts.describing import describe
from adaverify_engine.drafters.reading import ReadingDrafter
from adaverify_engine.engine import Engine
from adaverify_engine.forced import forced_plan, ranked_counts
from adaverify_engine.options import EngineOptions, Sampling
from adaverify_engine.pipeline import DecodePipeline
from adaverify_engine.request import Request
from adaverify_engine.row_tiers import FEW, ROWS
from adaverify_engine.scheduler import Scheduler, Work
from adaverify_engine.text import Detokenizer
from adaverify_verification import (
    CostTable,
    Fingerprint,
    ProfileGrid,
    TableCheck,
    check_table,
    profile_cost,
)

if TYPE_CHECKING:
    from adaverify_runtime import Staged

_log = logging.getLogger(__name__)

REPLAYS = 4
"""Replays timed together, so that the host's launches hide behind the device's work, as in service."""
TOKENS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Query tokens to measure: every step at which a processor's tiling has been seen to change."""


def fingerprint(
    geometry: ModelGeometry,
    options: EngineOptions,
    capability: Capability,
    ladder: tuple[int, ...] = (),
    drafter: str = "",
    bare: tuple[int, ...] = (),
) -> Fingerprint:
    """Return the setup that a cost table of such an engine belongs to.

    Args:
        geometry: of the model.
        options: of the engine.
        capability: of the device.
        ladder: token counts that are captured; none in eager mode.
        drafter: its name; its time is in the table.
        bare: request counts of captured steps that draft nothing; none where there are none.
    """
    more: dict[str, Any] = {"bare": bare} if bare else {}
    if options.device.startswith("cpu") and not ladder:
        # How its rows are padded: ``row_tiers``.
        more["rows"] = (FEW, ROWS)
    return Fingerprint.of(
        device=capability.device_name,
        torch=torch.__version__,
        kernels=[f"{report.name} {report.version}" for report in capability.kernels],
        model=geometry.name,
        ladder=ladder,
        draft_tokens=options.draft_tokens,
        dtype=options.dtype,
        threads=torch.get_num_threads(),
        page_size=options.page_size,
        drafter=drafter,
        **more,
    )


def grid_for(
    options: EngineOptions,
    contexts: tuple[int, ...] | None = None,
    repeats: int = 5,
    ladder: tuple[int, ...] = (),
    bare: tuple[int, ...] = (),
) -> ProfileGrid:
    """Return the shapes worth measuring: ``TOKENS`` up to the largest step, powers of two of requests.

    With a ladder its tiers are measured instead of ``TOKENS``: between them every step costs the same.

    Args:
        options: of the engine.
        contexts: KV lengths a request; None takes a quarter and all of what ``max_model_len`` leaves.
        repeats: recorded rounds.
        ladder: token counts that are captured; none in eager mode.
        bare: request counts of captured steps that draft nothing; none where there are none.
    """
    limits = options.limits
    longest = _longest_context(options)
    if contexts is None:
        contexts = tuple(sorted({max(1, longest // 4), longest}))
    requests = {1 << bit for bit in range(limits.max_requests.bit_length())} | {limits.max_requests}
    tokens = set(ladder) or ({count for count in TOKENS if count < limits.max_tokens} | {limits.max_tokens})
    return ProfileGrid(
        requests=tuple(sorted(count for count in requests if count <= limits.max_requests)),
        contexts=contexts,
        tokens=tuple(sorted(tokens)),
        draft_tokens=limits.draft_tokens,
        padded=bool(ladder),
        repeats=repeats,
        bare=bare,
    )


def profile_engine(
    engine: Engine,
    grid: ProfileGrid | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> CostTable:
    """Return measured seconds of decode steps by (tokens, requests, context).

    A run is what a step does between drafting and emission: staging, the model pass over the cache at that
    context, logits and acceptance. Draft tokens are spread over the requests as trimming does.
    Drafting is measured apart.

    Args:
        engine: an idle engine; its statistics and requests are untouched, its cache contents are not.
        grid: what to measure; ``grid_for(engine.options)`` when None.
        progress: called as ``progress(done, total)``.

    Raises:
        EngineError: the engine is busy, a context is too long, or the pool does not hold the largest shape.
    """
    _require_idle(engine)
    runner, verifier = _Runner(engine), engine.verifier
    if grid is None:
        grid = grid_for(engine.options, ladder=verifier.tiers, bare=verifier.bare_tiers)
    table = profile_cost(
        runner.step,
        grid,
        _setup(engine),
        # A captured step drafts inside its graph, so its time holds the drafting.
        measure_draft=runner.draft if engine.pipeline is None and runner.drafts() else None,
        measure_bare=runner.bare if verifier.bare_tiers else None,
        progress=progress,
    )
    runner.close()
    return table


def check_cost_table(engine: Engine, table: CostTable) -> TableCheck:
    """Measure a few points of ``table`` on ``engine`` and say whether the table still has their shape.

    Takes less than a second where steps take less than a tenth of one.

    Args:
        engine: an idle engine of the table's setup; what it leaves behind is as in ``profile_engine``.
        table: the stored table.

    Raises:
        EngineError: the engine is busy, or its pool does not hold a point that its sizes allow.
    """
    _require_idle(engine)
    runner, options = _Runner(engine), engine.options

    def measure(tokens: int, requests: int, context: int) -> float:
        # A point of a padded table is the size that executes, which may be more than its requests hold.
        return runner.step(min(tokens, requests * (options.draft_tokens + 1)), requests, context)

    return check_table(
        table, measure, max_requests=options.max_requests, max_context=_longest_context(options)
    )


def profile_drafting(engine: Engine, table: CostTable, *, repeats: int = 5) -> CostTable:
    """Return ``table`` with this engine's drafting time and setup in place of its own.

    For engines that differ in the drafter alone and run their steps eagerly: there the table prices drafting
    apart, in a captured step it is inside.

    Args:
        engine: an idle engine whose steps are not captured.
        table: of the other engine.
        repeats: recorded rounds.

    Raises:
        EngineError: the engine is busy, or its steps are captured.
    """
    _require_idle(engine)
    if engine.pipeline is not None:
        raise EngineError(
            "the drafting of captured steps cannot be measured apart",
            allowed="an engine that runs its steps eagerly",
            remedy="profile the whole engine",
        )
    runner, counts = _Runner(engine), sorted({curve.requests for curve in table.curves})
    counts = [count for count in counts if count <= engine.options.max_requests]
    times: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(1 + repeats if runner.drafts() else 0):
        for count in counts:
            times[count].append(runner.draft(count))
    runner.close()
    # The first round warms up. The fastest: whatever disturbs a run only ever adds time.
    draft = tuple((count, min(found[1:])) for count, found in times.items() if found)
    return replace(table, fingerprint=_setup(engine), draft=draft)


def _setup(engine: Engine) -> Fingerprint:
    verifier = engine.verifier
    drafter = next((one.name for one in verifier.report.drafters if one.chosen), "")
    geometry = engine.model.model.geometry
    tiers, bare = verifier.tiers, verifier.bare_tiers
    return fingerprint(geometry, engine.options, verifier.capability, tiers, drafter, bare)


def _require_idle(engine: Engine) -> None:
    if not engine.idle:
        raise EngineError(
            "a busy engine cannot be profiled",
            allowed="an engine with no requests",
            remedy="profile before serving, or after run() has returned",
        )


class _Runner:
    """Runs steps of made-up requests; batches are kept, so that a run times nothing but the step."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._random = np.random.default_rng(0)
        self._batches: dict[tuple[int, int], tuple[Work, Scheduler]] = {}
        self._step = 0
        self._drafting = 0
        # Few different ids, so that the drafter finds matches, as it does in text that is worth drafting for.
        self._ids = min(8, engine.model.model.geometry.vocabulary)

    @torch.inference_mode()
    def step(self, tokens: int, requests: int, context: int) -> float:
        """Return seconds of one decode step."""
        work, scheduler = self._batch(requests, context)
        table = scheduler.block_table
        if self._engine.pipeline is not None:
            width = self._engine.options.draft_tokens
            budget = tokens - requests
            return self._replays(self._engine.pipeline, budget, requests, context, table, width=width)
        drafts = self._drafts(requests, tokens - requests)
        begin = perf_counter()
        plan, staged = self._stage(work, drafts, scheduler)
        executor = self._engine.executor
        longest = context + 1 + self._engine.options.draft_tokens
        passed = executor.forward(work, staged, plan, table, longest)
        verdict, _ = executor.judge(passed.logits, work.decode, drafts, staged, scheduler.running)
        verdict.accepted.tolist()
        return perf_counter() - begin

    @torch.inference_mode()
    def bare(self, tokens: int, requests: int, context: int) -> float:
        """Return seconds of one captured step that drafts nothing; ``tokens`` are one a request."""
        assert self._engine.pipeline is not None  # noqa: S101 - asked only where such steps were captured
        table = self._batch(requests, context)[1].block_table
        return self._replays(self._engine.pipeline, tokens - requests, requests, context, table, width=0)

    def _replays(
        self,
        pipeline: DecodePipeline,
        budget: int,
        requests: int,
        context: int,
        table: np.ndarray,
        *,
        width: int,
    ) -> float:
        verifier, steps = self._engine.verifier, []
        manager, tiers = verifier.manager, verifier.tiers if width else verifier.bare_tiers
        for _ in range(REPLAYS):
            self._step += 1
            state = StepState(
                step=self._step,
                slots=np.arange(requests, dtype=np.int64),
                generations=np.full(requests, -1, dtype=np.int64),
                scheduled=np.full(requests, width, dtype=np.int64),
                emitting=requests,
            )
            plan = forced_plan(state, budget, tiers)
            steps.append((state, manager.apply(state, manager.export(plan))))
        return pipeline.time(steps, context, table)

    def drafts(self) -> bool:
        """Return whether there is any drafting to time; one that fails costs the table its price only."""
        if not self._engine.options.draft_tokens:
            return False
        try:
            self.draft(1)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a step without drafts is still a step
            _log.warning("drafting is not priced, the drafter failed: %s", describe(error))
            return False
        return True

    def draft(self, requests: int) -> float:
        """Return seconds of proposing for ``requests`` requests."""
        drafter, limits = self._engine.drafter, self._engine.options.limits
        while self._drafting < requests:
            prompt = self._random.integers(0, self._ids, size=min(256, limits.max_model_len - 1))
            drafter.start(self._drafting, prompt.tolist())
            if isinstance(drafter, ReadingDrafter):
                drafter.place(self._drafting, _home_pages(self._engine.options, self._drafting))
            self._drafting += 1
        room = np.full(requests, limits.draft_tokens, dtype=np.int64)
        begin = perf_counter()
        drafter.propose(range(requests), room)
        return perf_counter() - begin

    def close(self) -> None:
        """Leave no request behind in the drafter."""
        for slot in range(self._drafting):
            self._engine.drafter.stop(slot)

    def _batch(self, requests: int, context: int) -> tuple[Work, Scheduler]:
        if (requests, context) not in self._batches:
            options = self._engine.options
            if context > _longest_context(options):
                raise EngineError(
                    "the context to profile leaves no room for a decode step",
                    arrived=context,
                    allowed=f"at most {_longest_context(options)}",
                    remedy="shorten the context or raise max_model_len",
                )
            scheduler = Scheduler(options)
            for number in range(requests):
                scheduler.submit(self._request(number, context))
            if len(scheduler.admit()) < requests:
                raise EngineError(
                    "the KV pool does not hold the shape to profile",
                    arrived=f"{requests} requests of {context} tokens",
                    allowed=f"{options.pool_pages - 1} pages of {options.page_size} tokens",
                    remedy="raise num_pages or profile fewer requests",
                )
            self._batches[requests, context] = (scheduler.work(), scheduler)
        return self._batches[requests, context]

    def _request(self, number: int, context: int) -> Request:
        prompt = self._random.integers(0, self._ids, size=context).tolist()
        return Request(
            id=number,
            prompt=prompt,
            begun=context,
            given=[0],
            max_output=self._engine.options.draft_tokens + 2,
            sampling=Sampling(),
            stop_tokens=frozenset(),
            noise=None,
            text=Detokenizer(self._engine.model.tokenizer),
        )

    def _drafts(self, requests: int, count: int) -> DraftBatch:
        """Return ``count`` draft tokens, each request 0 .. K of them."""
        width = self._engine.options.draft_tokens
        scheduled = ranked_counts(self._random, requests, width, count)
        tokens = torch.from_numpy(self._random.integers(0, self._ids, size=(requests, width)))
        tokens[torch.arange(width) >= torch.from_numpy(scheduled)[:, None]] = -1
        device = self._engine.options.device
        return DraftBatch(tokens.to(device), scheduled, torch.zeros((requests, width), device=device))

    def _stage(self, work: Work, drafts: DraftBatch, scheduler: Scheduler) -> tuple[Plan, Staged]:
        """Stage a step that verifies every draft, whatever the verifier would have planned."""
        verifier, buffers, rows = self._engine.verifier, self._engine.executor.buffers, len(work.decode)
        self._step += 1
        state = StepState(
            step=self._step,
            slots=np.arange(rows, dtype=np.int64),
            # No real slot generation is negative, so nothing published here is ever read for a request.
            generations=np.full(rows, -1, dtype=np.int64),
            scheduled=drafts.scheduled,
            emitting=rows,
        )
        running = scheduler.running
        slots = work.batch.slots
        table = scheduler.block_table[slots]
        buffers.load(running.newest(slots), running.computed[slots], drafts, table)
        manager = verifier.manager
        plan = manager.apply(state, manager.export(forced_plan(state, state.max_budget)))
        return plan, verifier.stage(
            plan, buffers.scheduled[:rows], buffers.kv_lens[:rows], buffers.block_table[:rows]
        )


def _home_pages(options: EngineOptions, slot: int) -> np.ndarray:
    """Return int32 [W]: pages in a run, as a slot's own usually are, within the pool."""
    width = options.limits.table_width
    pages = 1 + (slot * width + np.arange(width)) % (options.pool_pages - 1)
    return pages.astype(np.int32)


def _longest_context(options: EngineOptions) -> int:
    return options.max_model_len - options.draft_tokens - 2
