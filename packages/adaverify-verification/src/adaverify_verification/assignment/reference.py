"""Which draft tokens to verify, in readable torch: the oracle of the kernel and the torch backend."""

from __future__ import annotations

from typing import NamedTuple

import torch

from adaverify_verification.quantise import SCORE_MAX, scores


class AssignmentTensors(NamedTuple):
    """Results of one assignment before they enter static buffers; see ``Assignment`` for the fields."""

    admitted: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    token_request: torch.Tensor
    token_offset: torch.Tensor


def assign_reference(
    confidences: torch.Tensor,
    scheduled: torch.Tensor,
    kv_lens: torch.Tensor,
    budget: torch.Tensor,
    padded_tokens: int,
) -> AssignmentTensors:
    """Admit the B best scheduled positions under (score descending, position, request) (maths section 2).

    B is ``budget`` clamped to [0, min(scheduled positions, padded_tokens - real requests)], so that
    boundaries never pass the padded tail even when a replayed graph reads a stale budget.

    Args:
        confidences: float32 [R, K], any values.
        scheduled: int32 [R], draft tokens of each request; -1 marks a padding request; above K counts as K.
        kv_lens: int32 [R], KV length before this step's query tokens.
        budget: int32 [1], on the same device; never read by the host.
        padded_tokens: query tokens to describe, padding included.

    Returns:
        int32 tensors as ``Assignment`` documents them. Allocates freely.
    """
    requests, drafts = confidences.shape
    device = confidences.device
    position = torch.arange(drafts, device=device)
    request = torch.arange(requests, device=device)
    real = scheduled >= 0

    candidate = position < scheduled[:, None]
    allowed = torch.minimum(candidate.sum(), padded_tokens - real.sum()).clamp(min=0)
    size = torch.minimum(budget[0].clamp(min=0), allowed)

    # One integer carries the whole total order; positions that were not scheduled come after every real one.
    order = (SCORE_MAX - scores(confidences)).long() * max(drafts, 1) + position
    order = order * max(requests, 1) + request[:, None]
    order = order.masked_fill(~candidate, torch.iinfo(torch.int64).max).flatten()
    best = torch.argsort(order)
    taken = torch.empty_like(best)
    taken[best] = torch.arange(best.numel(), device=device)
    admitted = (taken < size).view(requests, drafts).sum(dim=1)

    query_lens = torch.where(real, admitted + 1, 0)
    ends = query_lens.cumsum(0)
    query_start_loc = torch.cat([ends.new_zeros(1), ends])

    token = torch.arange(padded_tokens, device=device)
    owner = torch.searchsorted(ends, token, right=True)
    inside = token < query_start_loc[-1]
    offset = token - query_start_loc[owner.clamp(max=max(requests - 1, 0))]
    return AssignmentTensors(
        admitted.int(),
        query_start_loc.int(),
        torch.where(real, kv_lens + query_lens, 0).int(),
        torch.where(inside, owner, -1).int(),
        torch.where(inside, offset, -1).int(),
    )
