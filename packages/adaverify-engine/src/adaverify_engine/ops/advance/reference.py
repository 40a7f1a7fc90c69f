"""Reference of the advance: one request after the other, as the host path does it."""

from __future__ import annotations

import torch

MEMORY = 0.85
"""Weight that a request's acceptance statistic keeps from one step to the next (drafters.ngram)."""


def advance_reference(
    picked: torch.Tensor,
    gaps: torch.Tensor,
    admitted: torch.Tensor,
    query_start_loc: torch.Tensor,
    row_slot: torch.Tensor,
    drafts: torch.Tensor,
    scheduled: torch.Tensor,
    limit: torch.Tensor,
    history: torch.Tensor,
    length: torch.Tensor,
    hits: torch.Tensor,
    trials: torch.Tensor,
    out_accepted: torch.Tensor,
    out_tokens: torch.Tensor,
    out_gaps: torch.Tensor,
) -> None:
    """Move every request on; arguments as ``advance`` documents them."""
    out_accepted.zero_()
    out_tokens.fill_(-1)
    out_gaps.zero_()
    start = query_start_loc.tolist()
    for row, slot in enumerate(row_slot.tolist()):
        if slot < 0:
            continue
        size = min(int(admitted[row]) + 1, start[row + 1] - start[row])
        decided = picked[start[row] : start[row] + size]
        proposal = drafts[slot, : int(scheduled[slot])]
        equal = decided[: len(proposal)] == proposal[: len(decided)]
        agreeing = int(equal.long().cumprod(dim=0).sum())
        at = int(length[slot])
        emitted = max(min(min(agreeing, size - 1) + 1, size, int(limit[slot]) - at), 0)
        if not emitted:
            continue
        out_accepted[row] = emitted - 1
        out_tokens[row, :emitted] = decided[:emitted]
        out_gaps[row, :emitted] = gaps[start[row] : start[row] + emitted]
        history[slot, at : at + emitted] = decided[:emitted]
        length[slot] = at + emitted
        # The whole proposal is on trial, also where it was not admitted: it is compared, not verified.
        hits[slot] = MEMORY * hits[slot] + min(agreeing, emitted)
        trials[slot] = MEMORY * trials[slot] + min(emitted, len(proposal))
