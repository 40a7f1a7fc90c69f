"""Both operations in torch, readable; also what a CPU runs. Vectorised, since a CPU run has 256 rows too."""

from __future__ import annotations

import torch

from adaverify_engine.ops.recorded.layout import RecordRows, RecordSlots, RecordTables
from adaverify_engine.results import StepResults


def gather_recorded_reference(
    row_slot: torch.Tensor, tables: RecordTables, state: RecordSlots, rows: RecordRows
) -> None:
    """Write ``rows`` for int32 [R] ``row_slot``; see ``launch.gather_recorded``."""
    count = len(row_slot)
    real = row_slot >= 0
    slot = row_slot.clamp(min=0).long()
    scheduled = torch.where(state.control[1] > 0, state.prefix[slot], state.control[0])
    scores = tables.scores[state.cursor[slot].long()]
    rows.scheduled[:count] = torch.where(real, scheduled, -1)
    rows.kv_lens[:count] = torch.where(real, state.kv_len[slot], 0)
    rows.scores[:count] = torch.where(real[:, None], scores, 0.0)
    rows.slots[:count] = row_slot
    rows.block_table[:count] = torch.where(real[:, None], state.block_table[slot], 0)


def accept_recorded_reference(
    row_slot: torch.Tensor,
    admitted: torch.Tensor,
    query_start_loc: torch.Tensor,
    picked: torch.Tensor,
    row_scores: torch.Tensor,
    tables: RecordTables,
    state: RecordSlots,
    results: StepResults,
    start: int,
    bound: int,
) -> None:
    """Move every request on; arguments as ``launch.accept_recorded`` documents them."""
    count = len(row_slot)
    real = row_slot >= 0
    slot = row_slot.clamp(min=0).long()
    at = state.cursor[slot]
    accepted = torch.where(real, torch.minimum(admitted, tables.accepted[at.long()]), 0)
    results.accepted[:count] = accepted
    results.admitted[:count] = torch.where(real, admitted, 0)
    place = torch.arange(results.tokens.shape[1], device=row_slot.device)
    token = picked[(query_start_loc[:-1, None] + place).clamp(max=max(len(picked) - 1, 0)).long()]
    results.tokens[:count] = torch.where(real[:, None] & (place <= accepted[:, None]), token, -1)
    results.scores[:count] = row_scores[:count]
    moved = at + accepted + 1
    moved = torch.where(moved >= state.end[slot], moved - state.end[slot] + state.begin[slot], moved)
    length = state.kv_len[slot] + accepted + 1
    length = torch.where(length > bound, start, length)
    # Rows of padding share slot 0 with a real one, so only real rows may write.
    state.cursor[slot[real]] = moved[real]
    state.kv_len[slot[real]] = length[real].to(torch.int32)
