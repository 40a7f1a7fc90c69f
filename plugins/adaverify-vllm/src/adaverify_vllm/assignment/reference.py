"""The assignment and vLLM's boundaries in torch: the oracle of the kernel, and the form without Triton."""

from __future__ import annotations

from typing import NamedTuple

import torch

from adaverify_verification.assignment.reference import assign_reference

# Set in a request's scheduled count when none of its drafts can be accepted.
HOPELESS = 1 << 16


class Boundaries(NamedTuple):
    """int32 tensors: admitted [R], logits offsets [R + 1], query boundaries [R + 1]."""

    admitted: torch.Tensor
    cu_num_logits: torch.Tensor
    query_start_loc: torch.Tensor


def assign_boundaries(
    live: torch.Tensor,
    rows: torch.Tensor,
    scheduled: torch.Tensor,
    certain: torch.Tensor,
    budget: int,
    bonus: int,
) -> Boundaries:
    """Admit the ``budget`` best drafts under (score falling, position, request) and write the boundaries.

    Args:
        live: float32 [slots, K], confidences by slot.
        rows: int64 [R], slots in the order of the batch.
        scheduled: int32 [R], drafts of each request, plus ``HOPELESS`` where none can be accepted.
        certain: int32 [R], query tokens that are not drafts.
        budget: drafts to admit; clamped to 0 and the scheduled ones.
        bonus: logits rows of each request that are not drafts.
    """
    confidences = live[rows]
    confidences = torch.where((scheduled < HOPELESS)[:, None], confidences, 0.0)
    counts = scheduled % HOPELESS
    requests = len(rows)
    size = torch.full((1,), budget, dtype=torch.int32, device=live.device)
    found = assign_reference(confidences, counts, certain, size, requests + max(0, budget))
    zero = counts.new_zeros(1)
    logits = torch.cat([zero, (found.admitted + bonus).cumsum(0)]).int()
    queries = torch.cat([zero, (found.admitted + certain).cumsum(0)]).int()
    return Boundaries(found.admitted, logits, queries)
