"""Launches of the two operations of a recorded step: Triton on an accelerator, torch on a CPU."""

from __future__ import annotations

import torch

from adaverify_engine.ops.launchable import block_of, require_backend, require_launchable
from adaverify_engine.ops.recorded.layout import RecordRows, RecordSlots, RecordTables
from adaverify_engine.ops.recorded.reference import accept_recorded_reference, gather_recorded_reference
from adaverify_engine.results import StepResults

_BLOCK_WIDTH = 1024


def gather_recorded(
    row_slot: torch.Tensor, tables: RecordTables, state: RecordSlots, rows: RecordRows, *, backend: str
) -> None:
    """Write the first R entries of ``rows`` from the records at each request's cursor; one launch.

    Args:
        row_slot: int32 [R], -1 for padding rows.
        tables: the records.
        state: cursors, KV lengths and pages by slot.
        rows: static tensors by row.
        backend: ``torch`` or ``triton``; Triton only launches and may be captured.

    Raises:
        LayoutError: an unknown backend.
        CapabilityError: Triton on a CPU without its interpreter.
    """
    require_backend(backend)
    if backend == "torch":
        gather_recorded_reference(row_slot, tables, state, rows)
        return
    from adaverify_engine.ops.recorded.kernel import gather_recorded_kernel

    require_launchable(gather_recorded_kernel, row_slot.device)
    if not len(row_slot):
        return
    drafts, width = tables.scores.shape[1], state.block_table.shape[1]
    gather_recorded_kernel[(len(row_slot),)](
        row_slot,
        tables.scores,
        state.cursor,
        state.kv_len,
        state.prefix,
        state.block_table,
        state.control,
        rows.scheduled,
        rows.kv_lens,
        rows.scores,
        rows.slots,
        rows.block_table,
        DRAFTS=drafts,
        WIDTH=width,
        BLOCK_DRAFTS=block_of(drafts, 1),
        BLOCK_WIDTH=min(_BLOCK_WIDTH, block_of(width, 1)),
        num_warps=4,
    )


def accept_recorded(
    row_slot: torch.Tensor,
    admitted: torch.Tensor,
    query_start_loc: torch.Tensor,
    picked: torch.Tensor,
    row_scores: torch.Tensor,
    tables: RecordTables,
    state: RecordSlots,
    results: StepResults,
    *,
    start: int,
    bound: int,
    backend: str,
) -> None:
    """Accept min(admitted, recorded) drafts of each request and move it on; one launch.

    The cursor moves by accepted + 1 and wraps inside its sequence; the KV length moves likewise and goes back
    to ``start`` once it would pass ``bound``.

    Args:
        row_slot: int32 [R], -1 for padding; no slot twice.
        admitted: int32 [R], drafts verified.
        query_start_loc: int32 [R + 1].
        picked: int32 [T], the token that each query token decides.
        row_scores: float32 [at least R, K], handed out with the results.
        tables: the records; sequences are longer than K + 1.
        state: updated by slot.
        results: accepted, admitted, tokens and scores are written for R rows; -1 past the emitted tokens.
        start: KV length that a request wraps to.
        bound: largest KV length before a step.
        backend: ``torch`` or ``triton``.

    Raises:
        LayoutError: an unknown backend.
        CapabilityError: Triton on a CPU without its interpreter.
    """
    require_backend(backend)
    if backend == "torch":
        accept_recorded_reference(
            row_slot, admitted, query_start_loc, picked, row_scores, tables, state, results, start, bound
        )
        return
    from adaverify_engine.ops.recorded.kernel import accept_recorded_kernel

    require_launchable(accept_recorded_kernel, row_slot.device)
    if not len(row_slot):
        return
    drafts = tables.scores.shape[1]
    accept_recorded_kernel[(len(row_slot),)](
        row_slot,
        admitted,
        query_start_loc,
        picked,
        row_scores,
        tables.accepted,
        state.cursor,
        state.begin,
        state.end,
        state.kv_len,
        results.accepted,
        results.admitted,
        results.tokens,
        results.scores,
        START=start,
        BOUND=bound,
        DRAFTS=drafts,
        BLOCK=block_of(drafts + 1, 2),
        num_warps=1,
    )
