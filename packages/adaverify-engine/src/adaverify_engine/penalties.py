"""Repetition, presence and frequency penalties on the logits that decide."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from adaverify_engine.request import Request


def penalised(
    logits: torch.Tensor,
    requests: Sequence[Request],
    start: torch.Tensor,
    admitted: torch.Tensor,
    drafts: torch.Tensor,
) -> torch.Tensor:
    """Return the logits under each request's penalties; ``logits`` itself where no request has any.

    A row counts what would stand before its token: the output so far and the admitted drafts before it, which
    is all that there is when the row decides. A draft that was refused or not admitted counts nowhere: later
    steps count from the emitted tokens alone. Not for a captured step: it reads the device.

    Args:
        logits: float32 [N, V], not written to.
        requests: S requests in the order of their rows.
        start: int64 [S], first row of each.
        admitted: int64 [S]; request s owns rows start[s] .. start[s] + admitted[s].
        drafts: int64 [S, K], -1 where undrafted.
    """
    chosen = [index for index, request in enumerate(requests) if request.sampling.penalised]
    if not chosen:
        return logits
    out = logits.clone()
    first, count = start.tolist(), admitted.tolist()
    for index in chosen:
        rows = slice(first[index], first[index] + count[index] + 1)
        out[rows] = _apply(out[rows], requests[index], drafts[index, : count[index]])
    return out


def _apply(rows: torch.Tensor, request: Request, drafts: torch.Tensor) -> torch.Tensor:
    """Return the rows of one request, [l + 1, V], under its penalties; ``drafts`` are the l admitted ones."""
    sampling, width = request.sampling, rows.shape[1]
    counts = torch.zeros(rows.shape, dtype=torch.int64, device=rows.device)
    counts[0] = _tally(request.output, width, rows.device)
    # A draft outside the vocabulary is -1: it is never accepted, so the rows behind it decide nothing.
    counts[1:].scatter_(1, drafts.clamp(min=0)[:, None], (drafts >= 0).long()[:, None])
    counts = counts.cumsum(dim=0)
    there = counts > 0
    if sampling.repetition_penalty != 1.0:
        known = there | (_tally(request.prompt, width, rows.device) > 0)
        factor = sampling.repetition_penalty
        rows = torch.where(known, torch.where(rows > 0, rows / factor, rows * factor), rows)
    return rows - sampling.frequency_penalty * counts - sampling.presence_penalty * there.to(rows.dtype)


def _tally(tokens: Sequence[int], width: int, device: torch.device) -> torch.Tensor:
    """Return int64 [width]: how often each token id occurs."""
    return torch.bincount(torch.tensor(tokens, dtype=torch.int64), minlength=width).to(device)
