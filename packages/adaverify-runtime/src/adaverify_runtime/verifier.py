"""The verifier: the one object an engine talks to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping

import numpy as np
import torch

from adaverify_contracts import (
    Capability,
    ClosedError,
    DecodeBatch,
    Limits,
    Plan,
    StepOutcome,
    StepRecord,
    StepState,
)
from adaverify_graphs import CaptureReport, Progress, is_bare
from adaverify_runtime.argument_checks import captured_otherwise, require_callables, require_observer
from adaverify_runtime.capture import GraphedSteps, Prologue, Step
from adaverify_runtime.decision import Decision, decide_strategy
from adaverify_runtime.input_checks import require_padded_tokens, require_plan
from adaverify_runtime.observers import DisabledObserver
from adaverify_runtime.parts import Parts, Replayed
from adaverify_runtime.plugins import Observer
from adaverify_runtime.report import StartupReport
from adaverify_runtime.staging import PerRequest, Staged, StaticInputs, longest_context
from adaverify_verification import VerificationManager

# Outcomes arrive a few steps after their stage; strategies of steps whose outcome never came are dropped.
_STAGED_DEPTH = 64


class Verifier:
    """Sizes, assigns and stages decode steps, and learns from them. Made by ``assemble``.

    ``publish``, ``plan``, ``stage``, ``replay`` and ``launch`` are the decode path: no hook, no wait for the
    device, no environment. ``observe``, ``prepare`` and ``drain`` are off it. One thread at a time. After
    ``close`` the decode path raises ``ClosedError``, and so do ``capture`` and ``observe`` of a step that was
    not staged before.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._closed = False
        self._staged: OrderedDict[int, str] = OrderedDict()
        builders = (parts.ragged, parts.uniform, *parts.alternatives)
        self._builders = {item.strategy: item for item in builders if item is not None}
        self._ragged = None if parts.ragged is None else parts.ragged.strategy
        self._uniform = None if parts.uniform is None else parts.uniform.strategy

    @property
    def report(self) -> StartupReport:
        """What was discovered and chosen at start, with every reason."""
        return self._parts.report

    @property
    def capability(self) -> Capability:
        """What the device can do."""
        return self._parts.capability

    @property
    def limits(self) -> Limits:
        """Sizes fixed at start."""
        return self._parts.limits

    @property
    def device(self) -> torch.device:
        """The run device."""
        return self._parts.device

    @property
    def inputs(self) -> StaticInputs:
        """Static inputs of a step: what a prologue reads (``row_slot``) and writes."""
        return self._parts.inputs

    @property
    def graphs(self) -> GraphedSteps | None:
        """The captured steps; None unless a backend and a strategy that survives it were chosen."""
        return self._parts.graphs

    @property
    def captures(self) -> bool:
        """Whether ``capture`` captures anything."""
        return self.graphs is not None

    @property
    def tiers(self) -> tuple[int, ...]:
        """Token counts that are captured for steps that draft, rising; none in eager mode."""
        return () if self._parts.graphs is None else self._parts.graphs.tiers

    @property
    def bare_tiers(self) -> tuple[int, ...]:
        """Request counts that are captured for drafting-free steps, rising; none unless asked for."""
        return () if self._parts.graphs is None else self._parts.graphs.bare_tiers

    @property
    def manager(self) -> VerificationManager:
        """The verification manager."""
        return self._parts.manager

    @property
    def counters(self) -> Mapping[str, int]:
        """Every fallback, invalid event, disabled observer, graph miss, choice of rows, unproven kernel."""
        graphs = {} if self.graphs is None else self.graphs.counters
        rows = {} if self._parts.rows is None else self._parts.rows.counters
        named = {f"graph {name}": n for name, n in graphs.items()}
        named |= {f"rows: {word}": n for word, n in rows.items()}
        named |= {f"kernel-unproven:{kernel}": 1 for kernel in self._parts.unproven}
        return {**self.manager.counters, **self._parts.observers.counters, **named}

    @property
    def disabled_observers(self) -> tuple[DisabledObserver, ...]:
        """Observers that raised, with step and error."""
        return tuple(self._parts.observers.disabled)

    def publish(self, step: int, slots: np.ndarray, generations: np.ndarray, scores: torch.Tensor) -> None:
        """Take the raw scores float32 [R, K] of the drafts that ``step`` verifies; enqueue only.

        Args:
            step: the step that verifies these drafts.
            slots: int64 [R]; generations: int64 [R]; request slots in row order.
            scores: on the run device, 0 where undrafted.

        Raises:
            LayoutError: the shapes do not fit the limits.
        """
        self._require_open()
        self.manager.publish(step, slots, generations, scores)

    def plan(self, state: StepState) -> Plan:
        """Return how many draft tokens this step verifies, and why; host work only.

        Raises:
            PlanError: the state does not fit the limits.
        """
        self._require_open()
        return self.manager.plan(state)

    def prepare(self) -> bool:
        """Digest the newest confidences that have arrived, so that the next plan finds that done.

        Host work only, for a host that is about to wait. Changes no plan; returns whether it did anything.
        """
        return self.manager.prepare()

    def decide(self, plan: Plan, context: int | None = None, padded_tokens: int | None = None) -> Decision:
        """Return which strategy builds this step's rows when it is staged, and why; counts nothing.

        Args:
            plan: this step's plan.
            context: an upper bound of the step's longest KV length; ``limits.max_kv_len`` when None.
            padded_tokens: decode query tokens to describe; R + B when None.

        Raises:
            PlanError: ``plan`` is none.
            NoStrategyError: query lengths differ and no strategy reads them from the device.
        """
        require_plan(plan)
        return decide_strategy(
            plan,
            self._ragged,
            self._uniform,
            rows=self._parts.rows,
            tokens=padded_tokens,
            context=self.limits.max_kv_len if context is None else context,
        )

    def stage(
        self,
        plan: Plan,
        scheduled: PerRequest,
        kv_lens: PerRequest,
        block_table: torch.Tensor,
        padded_requests: int | None = None,
        padded_tokens: int | None = None,
    ) -> Staged:
        """Assign the budget and build the rows of one decode step; launches only.

        Args:
            plan: this step's plan.
            scheduled: int32 [R]; drafts scheduled for each decode request, in the plan's order.
            kv_lens: int32 [R]; KV length of each before this step's query tokens.
            block_table: int32 [at least R, W]; page ids. Read in place when it is on the run device and has
                ``padded_requests`` rows, else copied.
            padded_requests: request slots to describe; R when None.
            padded_tokens: decode query tokens to describe; R + B when None.

        Raises:
            PlanError: ``plan`` is none, or was made before one that was executed already.
            LayoutError: the tensors do not fit the plan or the limits.
            NoStrategyError: query lengths differ and no strategy reads them from the device.
        """
        self._require_executable(plan)
        parts, requests = self._parts, plan.requests
        padded_requests = requests if padded_requests is None else padded_requests
        tokens = requests + plan.budget
        padded_tokens = tokens if padded_tokens is None else padded_tokens
        require_padded_tokens(padded_tokens, tokens, parts.limits)
        context = None if parts.rows is None else longest_context(kv_lens, plan, parts.limits)
        decision = self.decide(plan, context, padded_tokens)
        views = parts.inputs.load(plan, scheduled, kv_lens, block_table, padded_requests)
        assignment = self.manager.assign(plan, *views, padded_tokens)
        length = decision.uniform_query_len
        batch = DecodeBatch(
            query_start_loc=assignment.query_start_loc,
            seq_lens=assignment.seq_lens,
            block_table=parts.inputs.table(block_table, requests, padded_requests),
            num_requests=requests,
            num_tokens=tokens,
            padded_tokens=padded_tokens,
            max_query_len=min(parts.limits.draft_tokens, plan.budget) + 1 if length is None else length,
            uniform_query_len=length,
        )
        rows = self._builders[decision.strategy].build(batch)
        self._remember(plan.step, decision.strategy)
        self._count_rows(decision.word)
        return Staged(assignment, rows, decision.strategy, decision.reason)

    def capture(
        self,
        step: Step,
        expected: Mapping[int, float] | None = None,
        *,
        bytes_of: Callable[[int], int] | None = None,
        progress: Progress | None = None,
        prologue: Prologue | None = None,
        bare: bool = False,
    ) -> CaptureReport | None:
        """Capture decode steps, largest first, and plan for the sizes that were really captured.

        A captured step builds rows from static boundaries and runs ``step``. With a ``prologue`` the *whole*
        step is captured, drafting to relay, and ``launch`` runs it in one replay; without one, ``replay``
        launches the assignment first. Call it once, before serving.

        Args:
            step: the caller's part of a decode step; reads ``Staged`` and buffers of its own.
            expected: how often each number of query tokens occurs; uniform sizes when None.
            bytes_of: estimated bytes of one size, needed to respect a limit in bytes in advance.
            progress: called before each size.
            prologue: drafts, and writes ``inputs`` for the slots in ``inputs.row_slot``; launches only.
            bare: also capture a few drafting-free whole steps (a longest query of 1): their prologue must
                schedule nothing. They publish no confidences, and serve plans without scheduled drafts.

        Returns:
            The report, or None when the graph backend does not capture; the start-up report says why.

        Raises:
            GraphError: ``step``, ``bytes_of``, ``progress`` or ``prologue`` cannot be called.
        """
        self._require_open()
        require_callables(step=step, bytes_of=bytes_of, progress=progress, prologue=prologue)
        graphs = self._parts.graphs
        if graphs is None:
            return None
        sizes = graphs.families(expected, bytes_of, bare=bare and prologue is not None)
        report = graphs.capture(step, sizes, progress, prologue=prologue)
        self.manager.set_tiers(graphs.tiers, graphs.bare_tiers)
        return report

    def replay(
        self, plan: Plan, scheduled: PerRequest, kv_lens: PerRequest, block_table: torch.Tensor
    ) -> Replayed | None:
        """Run one decode step from the smallest graph that serves it; None when none does.

        Then ``stage`` it and run it eagerly; the miss is counted by reason. Arguments as for ``stage``.

        Raises:
            PlanError: ``plan`` is none, or was made before one that was executed already.
            LayoutError: the tensors do not fit the plan or the limits.
            GraphError: whole steps were captured, which ``launch`` runs.
        """
        self._require_executable(plan)
        parts = self._parts
        if parts.graphs is None:
            return None
        if parts.graphs.whole:
            raise captured_otherwise("a whole step")
        key = parts.graphs.match(plan)
        if key is None:
            return None
        views = parts.inputs.load(plan, scheduled, kv_lens, block_table, key.requests)
        parts.inputs.copy_table(block_table, plan.requests)
        assignment = self.manager.assign(plan, *views, key.tokens)
        result = parts.graphs.cache.replay(key)
        self._remember(plan.step, parts.graphs.strategy_of(key))
        self._count_rows(parts.graphs.word_of(key))
        return Replayed(key, assignment, result)

    def launch(self, plan: Plan, state: StepState) -> Replayed | None:
        """Run one whole decode step in one replay; None when no captured size serves the plan.

        The host writes the budget, a ring entry and one slot a request, and reads nothing. On a miss, which
        is counted by reason, publish, plan, stage and run the step eagerly.

        Args:
            plan: the plan of ``state``.
            state: the step; its slots, in this order, are the rows.

        Raises:
            PlanError: as ``stage`` does.
            GraphError: no whole step was captured: ``capture`` had no prologue.
        """
        self._require_executable(plan)
        graphs = self._parts.graphs
        if graphs is None or not graphs.whole:
            raise captured_otherwise("no whole step")
        key = graphs.match(plan)
        if key is None:
            return None
        if is_bare(key, self.limits):
            # Nothing was scored: the newest confidences stay those of the last drafts.
            self._parts.inputs.command(plan.budget, 0, state.slots)
            result = graphs.replay(key)
        else:
            entry = self.manager.begin_publish(state.step, state.slots, state.generations)
            self._parts.inputs.command(plan.budget, entry, state.slots)
            result = graphs.replay(key)
            self.manager.end_publish()
        self._remember(plan.step, graphs.strategy_of(key))
        self._count_rows(graphs.word_of(key))
        return Replayed(key, graphs.views(key), result)

    def observe(self, outcome: StepOutcome, plan: Plan) -> StepRecord:
        """Learn from a finished step and return its record; queue the record for observers.

        Observers are called by ``drain``, by ``close``, and here when the queue is full or the verifier is
        closed. Without observers a record has no ``rows``.

        Raises:
            PlanError: ``outcome`` or ``plan`` is no such value.
            ClosedError: the verifier is closed, and this step was not under way when it was.
        """
        require_plan(plan)
        if self._closed and plan.step not in self._staged:
            self._require_open()
        strategy, observers = self._staged.pop(plan.step, "unstaged"), self._parts.observers
        record = self.manager.observe(outcome, plan, strategy, rows=observers.listening)
        observers.put(record)
        if self._closed:
            self.drain()
        return record

    def add_observer(self, name: str, call: Callable[[StepRecord], None]) -> None:
        """Hand every later record of this verifier alone to ``call``, as to a plugin's observer.

        Args:
            name: what reports call it.
            call: runs in ``drain``; one that raises is disabled, counted and reported.

        Raises:
            DescriptorError: ``name`` is no text, or ``call`` cannot be called.
        """
        require_observer(name, call)
        self._parts.observers.add(Observer(name, call))

    def drain(self) -> int:
        """Call the observers with every queued record, in step order; return how many records there were."""
        return self._parts.observers.drain()

    def close(self) -> None:
        """Drain, then release the relay and the graphs; closing again does nothing.

        Outcomes of steps that were staged before can still be observed, each once; nothing else can be done.
        """
        if self._closed:
            return
        self._closed = True
        self.drain()
        if self.graphs is not None:
            self.graphs.clear()
        self.manager.close()

    def _count_rows(self, word: str | None) -> None:
        if word is not None and self._parts.rows is not None:
            self._parts.rows.count(word)

    def _require_executable(self, plan: Plan) -> None:
        self._require_open()
        require_plan(plan)
        self.manager.ledger.require_current(plan.step)

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError(
                "the verifier was used after close()",
                arrived="a closed verifier",
                allowed="a verifier that was not closed",
                remedy="close it after the last step, or assemble another",
            )

    def _remember(self, step: int, strategy: str) -> None:
        self.manager.ledger.executed(step)
        self._staged[step] = strategy
        self._staged.move_to_end(step)
        while len(self._staged) > _STAGED_DEPTH:
            self._staged.popitem(last=False)
