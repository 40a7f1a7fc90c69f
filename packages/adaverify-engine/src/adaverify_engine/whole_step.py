"""The body of a decode step that is captured whole: drafting, gather, model, verdict, history."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from adaverify_contracts import DeviceDrafter, GraphKey
from adaverify_engine.drafters.reading import ReadingDrafter
from adaverify_engine.executor import Executor
from adaverify_engine.ops.advance.launch import advance
from adaverify_engine.ops.gather_rows.launch import gather_rows
from adaverify_engine.ops.gather_rows.layout import StepRows
from adaverify_engine.ops.pick.launch import Pick
from adaverify_engine.results import StepResults
from adaverify_engine.slots import SlotInputs

if TYPE_CHECKING:
    from adaverify_runtime import Staged, Verifier


class WholeStep:
    """``prologue`` and ``run`` for ``Verifier.capture``; both only launch.

    Args:
        executor: model, cache and step buffers.
        verifier: owner of the static inputs.
        drafter: proposes on the device.
        slots: limits, pages and noise by slot.
        results: where the verdict goes.
        drafting: False schedules no drafts at all (mode ``none``); else the drafting-free sizes (those of one
            token a request) schedule none. They keep what a drafter needs to propose again later: history,
            lengths and, for one that reads the target, features.
    """

    def __init__(
        self,
        executor: Executor,
        verifier: Verifier,
        drafter: DeviceDrafter,
        slots: SlotInputs,
        results: StepResults,
        *,
        drafting: bool,
    ) -> None:
        self._executor, self._drafter, self._drafting = executor, drafter, drafting
        # What a step without drafts has scheduled for each slot: drafts of an earlier step are not on trial.
        self._nothing = torch.zeros_like(drafter.state.scheduled)
        self._slots, self._results = slots, results
        limits, inputs, buffers = verifier.limits, verifier.inputs, executor.buffers
        device = verifier.device
        self._backend = "torch" if device.type == "cpu" else "triton"
        self._row_slot = inputs.row_slot
        self._rows = StepRows(
            certain=buffers.certain,
            drafts=buffers.drafts,
            scheduled=inputs.scheduled,
            kv_lens=inputs.kv_lens,
            scores=inputs.scores,
            slots=inputs.slots,
            block_table=inputs.block_table,
        )
        self._token = torch.zeros(limits.max_tokens, dtype=torch.int32, device=device)
        self._gap = torch.zeros(limits.max_tokens, dtype=torch.float32, device=device)
        self._pick = Pick(limits.max_tokens, executor.vocabulary, device, backend=self._backend)

    def prologue(self, key: GraphKey) -> None:
        """Draft for the slots of this step and gather what belongs to them, in row order."""
        row_slot = self._row_slot[: key.requests]
        drafting = self._drafts(key)
        if drafting:
            self._drafter.draft(row_slot)
        gather_rows(
            row_slot,
            self._drafter.state,
            self._slots.block_table,
            self._rows,
            drafting=drafting,
            backend=self._backend,
        )

    def run(self, staged: Staged, key: GraphKey) -> None:
        """Run the model over the staged tokens, decide, and append what was decided to the history."""
        count, rows, slots, results = key.requests, self._rows, self._slots, self._results
        state, assignment = self._drafter.state, staged.assignment
        row_slot = self._row_slot[:count]
        passed = self._executor.decode(staged, rows.kv_lens, rows.block_table, queries=key.max_query_len)
        token, gap = self._token[: key.tokens], self._gap[: key.tokens]
        self._pick(
            passed.logits,
            assignment.token_request,
            assignment.token_offset,
            row_slot,
            state.length,
            slots.temperature,
            slots.top_p,
            slots.noise,
            token,
            gap,
            results.finite,
        )
        advance(
            token,
            gap,
            assignment.admitted,
            assignment.query_start_loc,
            row_slot,
            state.drafts,
            state.scheduled if self._drafts(key) else self._nothing,
            slots.limit,
            state.history,
            state.length,
            state.hits,
            state.trials,
            results.accepted[:count],
            results.tokens[:count],
            results.gaps[:count],
            backend=self._backend,
        )
        if passed.features is not None:
            assert isinstance(self._drafter, ReadingDrafter)  # noqa: S101 - nobody else sets taps
            self._drafter.keep_accepted(
                passed.features, assignment.query_start_loc, results.accepted[:count], row_slot
            )
        results.admitted[:count].copy_(assignment.admitted)
        results.scores[:count].copy_(rows.scores[:count])

    def _drafts(self, key: GraphKey) -> bool:
        # A longest query of 1 is the mark of the drafting-free sizes.
        return self._drafting and key.max_query_len > 1
