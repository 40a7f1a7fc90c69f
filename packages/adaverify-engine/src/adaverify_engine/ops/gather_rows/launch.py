"""Launch of the gather: Triton on an accelerator, torch on a CPU."""

from __future__ import annotations

import torch

from adaverify_contracts import DraftState
from adaverify_engine.ops.gather_rows.layout import StepRows
from adaverify_engine.ops.gather_rows.reference import gather_rows_reference

# A table of 2048 columns is two blocks; shorter ones are one masked block.
_BLOCK_WIDTH = 1024


def gather_rows(
    row_slot: torch.Tensor,
    state: DraftState,
    tables: torch.Tensor,
    rows: StepRows,
    *,
    drafting: bool,
    backend: str,
) -> None:
    """Write the first R entries of ``rows`` from the slots in ``row_slot``; one launch, capturable.

    Args:
        row_slot: int32 [R], -1 for padding rows.
        state: history and drafts by slot.
        tables: int32 [S, W], block table by slot.
        rows: static tensors by row.
        drafting: False schedules no draft for anyone; drafts are -1 and scores 0 then, whatever slots hold.
        backend: ``triton`` or ``torch``.
    """
    if backend == "torch":
        gather_rows_reference(row_slot, state, tables, rows, drafting=drafting)
        return
    if not len(row_slot):
        return
    from adaverify_engine.ops.gather_rows.kernel import gather_rows_kernel

    width, drafts = tables.shape[1], state.drafts.shape[1]
    gather_rows_kernel[(len(row_slot),)](
        row_slot,
        state.history,
        state.length,
        state.drafts,
        state.scores,
        state.scheduled,
        tables,
        rows.certain,
        rows.drafts,
        rows.scheduled,
        rows.kv_lens,
        rows.scores,
        rows.slots,
        rows.block_table,
        COLUMNS=state.history.shape[1],
        DRAFTS=drafts,
        WIDTH=width,
        BLOCK_DRAFTS=1 << max(drafts - 1, 0).bit_length(),
        BLOCK_WIDTH=min(_BLOCK_WIDTH, 1 << max(width - 1, 0).bit_length()),
        DRAFTING=drafting,
        num_warps=4,
    )
