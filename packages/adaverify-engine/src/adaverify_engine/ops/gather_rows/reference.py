"""The gather in torch, readable; also what a CPU runs."""

from __future__ import annotations

import torch

from adaverify_contracts import DraftState
from adaverify_engine.ops.gather_rows.layout import StepRows


def gather_rows_reference(
    row_slot: torch.Tensor, state: DraftState, tables: torch.Tensor, rows: StepRows, *, drafting: bool
) -> None:
    """Write ``rows`` for int32 [R] ``row_slot``; see ``launch.gather_rows``."""
    count = len(row_slot)
    real = row_slot >= 0
    slot = row_slot.clamp(min=0).long()
    length = state.length[slot]
    last = (length - 1).clamp(min=0)
    scheduled = state.scheduled[slot] if drafting else torch.zeros_like(length)
    rows.certain[:count] = torch.where(real, state.history[slot, last.long()], 0)
    drafts = (real & drafting)[:, None]
    rows.drafts[:count] = torch.where(drafts, state.drafts[slot], -1)
    rows.scheduled[:count] = torch.where(real, scheduled, -1)
    rows.kv_lens[:count] = torch.where(real, last, 0)
    rows.scores[:count] = torch.where(drafts, state.scores[slot], 0.0)
    rows.slots[:count] = row_slot
    rows.block_table[:count] = torch.where(real[:, None], tables[slot], 0)
