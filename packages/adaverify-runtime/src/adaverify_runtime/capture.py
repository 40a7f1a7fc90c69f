"""Decode steps in graphs: which sizes, what is captured, and how a replay is fed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from adaverify_contracts import (
    DecodeBatch,
    DecodeRowBuilder,
    GraphBackend,
    GraphKey,
    GraphSupport,
    Limits,
    Plan,
)
from adaverify_graphs import (
    BufferSet,
    CaptureReport,
    Families,
    GraphCache,
    Progress,
    capture_query_lens,
    choose_families,
    choose_ladder,
    is_bare,
)
from adaverify_runtime.row_choice import Choice, RowChoice
from adaverify_runtime.staging import Staged, StaticInputs
from adaverify_verification import Assignment

Step = Callable[[Staged, GraphKey], Any]
"""The caller's part of a decode step: attention, model, sampling; it reads ``Staged`` and its own buffers."""


Prologue = Callable[[GraphKey], None]
"""Runs first in a step that is captured whole: drafts, and writes ``scheduled``, ``kv_lens``,
``block_table``, ``scores`` and ``slots`` of the static inputs for ``key.requests`` rows, by ``row_slot``."""

AssignLive = Callable[[StaticInputs, GraphKey], Assignment]
"""Device part of publishing and assigning, over static inputs; capturable."""


class GraphedSteps:
    """Captured decode steps over static inputs.

    A captured step builds the rows from the assignment's static boundaries and then runs the caller's step.
    With a prologue the step is captured *whole*: the prologue, the confidences, the relay's copy and the
    assignment come first in the same graph, and the host writes budget, ring entry and slots. Without one
    the assignment is launched before the replay.

    Whole steps may come in two families: those that draft, and drafting-free ones (``is_bare``), in which
    every request runs one token. A plan without scheduled drafts is served by the latter alone.

    Args:
        backend: captures and replays.
        limits: sizes.
        mode: the level in force; ``UNIFORM_BATCH`` captures full batches only.
        builder: builds the rows inside the graph.
        inputs: static inputs.
        assignment: the assignment's static tensors by name.
        assign_live: publishes and assigns inside a graph; needed to capture whole steps.
        max_graphs: the most sizes to capture, None for no limit.
        bytes_limit: the most bytes that captures may hold, None for no limit.
        alternatives: builders that ``rows`` may choose instead of ``builder``.
        rows: asked once for each size, at its capture, with the longest context of the limits.
        prompts: whether steps that read prompts are to be captured, too (``for_prompts``).

    Attributes:
        captures_prompts: the same.
    """

    def __init__(
        self,
        backend: GraphBackend,
        limits: Limits,
        mode: GraphSupport,
        builder: DecodeRowBuilder,
        inputs: StaticInputs,
        assignment: Mapping[str, torch.Tensor],
        *,
        assign_live: AssignLive | None = None,
        max_graphs: int | None = None,
        bytes_limit: int | None = None,
        alternatives: Sequence[DecodeRowBuilder] = (),
        rows: RowChoice | None = None,
        prompts: bool = True,
    ) -> None:
        self._rows = rows
        self._alternatives = {item.strategy: item for item in alternatives}
        self._choices: dict[GraphKey, Choice] = {}
        self._limits = limits
        self._builder = builder
        self._inputs = inputs
        self._assignment = assignment
        self._assign_live = assign_live
        self._whole = False
        self._two_families = False
        self._bare_replays = 0
        self._max_graphs = max_graphs
        self._bytes_limit = bytes_limit
        tensors = {f"input.{name}": tensor for name, tensor in inputs.buffers.items()}
        tensors |= {f"assignment.{name}": tensor for name, tensor in assignment.items()}
        tensors |= {f"rows.{name}": tensor for name, tensor in builder.buffers.items()}
        for other in alternatives:
            tensors |= {f"rows.{other.strategy}.{name}": tensor for name, tensor in other.buffers.items()}
        self._backend = backend
        self.cache = GraphCache(
            backend, limits, buffers=BufferSet(tensors), mode=mode, bytes_limit=bytes_limit
        )
        self._prompts: GraphCache | None = None
        self.captures_prompts = prompts

    @property
    def whole(self) -> bool:
        """Whether the captured steps hold their own publication and assignment."""
        return self._whole

    @property
    def strategy(self) -> str:
        """Name of the strategy inside the graphs, unless ``strategy_of`` a size says another."""
        return self._builder.strategy

    def strategy_of(self, key: GraphKey) -> str:
        """Return the name of the strategy inside the graph of a size."""
        choice = self._choices.get(key)
        return self.strategy if choice is None else choice.strategy

    def word_of(self, key: GraphKey) -> str | None:
        """Return what the choice of rows of a size is counted as, None where there was none to make."""
        choice = self._choices.get(key)
        return None if choice is None else choice.word

    @property
    def tiers(self) -> tuple[int, ...]:
        """Token counts that are really captured for steps that draft, rising."""
        return tuple(sorted({key.tokens for key in self.cache.keys if not is_bare(key, self._limits)}))

    @property
    def bare_tiers(self) -> tuple[int, ...]:
        """Request counts that are really captured for drafting-free steps, rising."""
        return tuple(key.tokens for key in self.cache.keys if is_bare(key, self._limits))

    @property
    def counters(self) -> Mapping[str, int]:
        """The cache's counters, of its replays those that drafted nothing, and those of prompt steps."""
        free = {"replayed: drafting-free": self._bare_replays} if self._bare_replays else {}
        prompts = {} if self._prompts is None else self._prompts.counters
        return {**self.cache.counters, **free, **{f"prompts {name}": n for name, n in prompts.items()}}

    def for_prompts(self, limits: Limits, buffers: Mapping[str, torch.Tensor]) -> GraphCache:
        """Return a new cache for steps that read prompts, in the same memory and under the same limit.

        Its counters appear here behind ``prompts``.

        Args:
            limits: one request of the most tokens that such a step has.
            buffers: static tensors that these steps read and write, by name.
        """
        self._prompts = GraphCache(
            self._backend,
            limits,
            buffers=BufferSet(buffers),
            bytes_limit=self._bytes_limit,
        )
        return self._prompts

    def clear(self) -> None:
        """Drop every graph."""
        self.cache.clear()
        if self._prompts is not None:
            self._prompts.clear()

    def families(
        self,
        expected: Mapping[int, float] | None,
        bytes_of: Callable[[int], int] | None,
        *,
        bare: bool = False,
    ) -> Families:
        """Return the sizes to capture; without ``bytes_of`` a byte limit is checked capture by capture.

        Args:
            expected: how often each number of query tokens occurs.
            bytes_of: estimated bytes of one size.
            bare: also choose drafting-free sizes.
        """
        limit = self._bytes_limit if bytes_of is not None else None
        if bare and self.cache.mode is not GraphSupport.UNIFORM_BATCH:
            return choose_families(self._limits, expected, self._max_graphs, limit, bytes_of)
        return Families(choose_ladder(self._limits, expected, self._max_graphs, limit, bytes_of))

    def capture(
        self,
        step: Step,
        families: Families,
        progress: Progress | None = None,
        *,
        prologue: Prologue | None = None,
    ) -> CaptureReport:
        """Capture every size, largest first; a size that fails is named and the rest stay."""
        self._whole = prologue is not None
        keys = families.keys(self._limits)
        if self.cache.mode is GraphSupport.UNIFORM_BATCH:
            # One graph a full batch: as many requests as the tokens are at K + 1 each.
            longest = self._limits.max_query_len
            keys = tuple(
                GraphKey(key.tokens, key.tokens // longest, longest, key.table_width)
                for key in keys
                if key.tokens % longest == 0
            )
        report = self.cache.capture_all(
            keys, lambda key: self._make_run(step, key, prologue), progress=progress
        )
        self._two_families = bool(self.bare_tiers)
        return report

    def match(self, plan: Plan) -> GraphKey | None:
        """Return the smallest captured size that serves the plan, None when it runs eagerly; misses count."""
        longest = self._limits.max_query_len
        queries = 1 if self._two_families and not plan.scheduled else longest
        batch = GraphKey(plan.requests + plan.budget, plan.requests, queries, self._limits.table_width)
        return self.cache.match(
            None if plan.certain_tokens != plan.requests else batch,
            uniform=plan.uniform_query_len == longest,
            same_query_len=self._two_families,
        )

    def replay(self, key: GraphKey) -> Any:
        """Replay a captured step; drafting-free ones are counted apart too."""
        result = self.cache.replay(key)
        self._bare_replays += is_bare(key, self._limits)
        return result

    def _make_run(self, step: Step, key: GraphKey, prologue: Prologue | None) -> Callable[[], Any]:
        assignment = self.views(key)
        uniform = self.cache.mode is GraphSupport.UNIFORM_BATCH
        builder, reason = self._choose(key)
        if prologue is None:
            _write_valid_lengths(assignment, key)
        batch = DecodeBatch(
            query_start_loc=assignment.query_start_loc,
            seq_lens=assignment.seq_lens,
            block_table=self._inputs.block_table[: key.requests],
            num_requests=key.requests,
            num_tokens=key.tokens,
            padded_tokens=key.tokens,
            max_query_len=key.max_query_len,
            uniform_query_len=key.max_query_len if uniform else None,
        )

        def run() -> Any:
            current = assignment
            if prologue is not None:
                assert self._assign_live is not None  # noqa: S101 - assemble gives it with every backend
                prologue(key)
                current = self._assign_live(self._inputs, key)
            rows = builder.build(batch)
            return step(Staged(current, rows, builder.strategy, reason), key)

        return run

    def _choose(self, key: GraphKey) -> tuple[DecodeRowBuilder, str]:
        """Return the builder inside the graph of a size, and why."""
        reason = f"captured at {key.tokens} tokens"
        if self._rows is None:
            return self._builder, reason
        choice = self._choices[key] = self._rows.choose(key.tokens, self._limits.max_kv_len)
        return self._alternatives.get(choice.strategy, self._builder), f"{reason}; {choice.reason}"

    def views(self, key: GraphKey) -> Assignment:
        """Return the assignment's static tensors, cut for one size."""
        buffers = self._assignment
        return Assignment(
            admitted=buffers["admitted"][: key.requests],
            query_start_loc=buffers["query_start_loc"][: key.requests + 1],
            seq_lens=buffers["seq_lens"][: key.requests],
            token_request=buffers["token_request"][: key.tokens],
            token_offset=buffers["token_offset"][: key.tokens],
        )


def _write_valid_lengths(assignment: Assignment, key: GraphKey) -> None:
    """Write boundaries that are valid for this size, for its warm-up and capture."""
    lens = torch.tensor(capture_query_lens(key.tokens, key.requests, key.max_query_len - 1))
    assignment.admitted.copy_(lens - 1)
    assignment.query_start_loc[0] = 0
    assignment.query_start_loc[1:].copy_(lens.cumsum(0))
    assignment.seq_lens.copy_(lens)
    owner = torch.repeat_interleave(torch.arange(key.requests), lens)
    assignment.token_request.copy_(owner)
    assignment.token_offset.copy_(torch.arange(key.tokens) - (lens.cumsum(0) - lens)[owner])
