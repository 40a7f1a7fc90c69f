"""Launch of the advance: one program a row."""

from __future__ import annotations

import torch

from adaverify_contracts import LayoutError
from adaverify_engine.ops.advance.reference import MEMORY, advance_reference
from adaverify_engine.ops.launchable import block_of, require_backend, require_launchable


def advance(
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
    *,
    backend: str = "triton",
) -> None:
    """Accept the longest admitted prefix that equals the picked tokens and append what the step decided.

    Accepted + 1 picked tokens are appended to the request's history, but never past ``limit``: a request at
    its limit emits nothing and keeps its state. With Triton it only launches and may be captured.

    Args:
        picked: int32 [T], the token each query token decides (``Pick``).
        gaps: float32 [T].
        admitted: int32 [R], drafts verified.
        query_start_loc: int32 [R + 1]; row r owns tokens start[r] .. start[r] + admitted[r].
        row_slot: int32 [R], -1 for padding; no slot twice.
        drafts: int32 [S, K], dense.
        scheduled: int32 [S], drafts that are real.
        limit: int32 [S], longest history, prompt included; at most L.
        history: int32 [S, L], read nowhere, written from length on.
        length: int32 [S], updated.
        hits: float32 [S], trials: float32 [S]: updated as ``drafters.ngram`` does: times 0.85, then a trial
            for each scheduled position up to the first miss or the last emitted token.
        trials: see hits.
        out_accepted: int32 [R], emitted - 1, at least 0.
        out_tokens: int32 [R, K + 1], -1 past the emitted tokens; all -1 where nothing was emitted.
        out_gaps: float32 [R, K + 1], 0 past the emitted tokens.
        backend: ``torch`` (any device; reads the device on the host) or ``triton``.

    Raises:
        LayoutError: shapes do not fit, or an unknown backend.
        CapabilityError: Triton on a CPU without its interpreter.
    """
    require_backend(backend)
    _check(row_slot, query_start_loc, drafts, history, out_accepted, out_tokens, out_gaps)
    batch = (picked, gaps, admitted, query_start_loc, row_slot)
    state = (drafts, scheduled, limit, history, length, hits, trials)
    if backend == "torch":
        advance_reference(*batch, *state, out_accepted, out_tokens, out_gaps)
        return
    from adaverify_engine.ops.advance.kernel import advance_kernel

    require_launchable(advance_kernel, history.device)
    if not len(row_slot):
        return
    width = drafts.shape[1]
    advance_kernel[(len(row_slot),)](
        *batch,
        *state,
        out_accepted,
        out_tokens,
        out_gaps,
        history.stride(0),
        MEMORY=MEMORY,
        DRAFTS=width,
        BLOCK=block_of(width + 1),
        num_warps=1,
    )


def _check(
    row_slot: torch.Tensor,
    query_start_loc: torch.Tensor,
    drafts: torch.Tensor,
    history: torch.Tensor,
    out_accepted: torch.Tensor,
    out_tokens: torch.Tensor,
    out_gaps: torch.Tensor,
) -> None:
    rows, width = len(row_slot), drafts.shape[1]
    dense = (drafts, out_tokens, out_gaps)
    fits = (
        query_start_loc.shape == (rows + 1,)
        and len(drafts) == len(history)
        and out_accepted.shape == (rows,)
        and out_tokens.shape == out_gaps.shape == (rows, width + 1)
        and all(tensor.is_contiguous() for tensor in dense)
        and (history.shape[1] < 2 or history.stride(1) == 1)
        and drafts.dtype == history.dtype == out_tokens.dtype == torch.int32
    )
    if not fits:
        raise LayoutError(
            "the state or the outputs of an advance do not fit its rows",
            arrived={
                "rows": rows,
                "query_start_loc": tuple(query_start_loc.shape),
                "drafts": (str(drafts.dtype), tuple(drafts.shape)),
                "history": (str(history.dtype), tuple(history.shape)),
                "outputs": (tuple(out_accepted.shape), tuple(out_tokens.shape), tuple(out_gaps.shape)),
            },
            allowed="R rows, int32 drafts [S, K] and history [S, L], outputs [R], [R, K + 1], [R, K + 1]",
            remedy="make state and outputs from one Limits, and cut the outputs to the padded rows",
        )
