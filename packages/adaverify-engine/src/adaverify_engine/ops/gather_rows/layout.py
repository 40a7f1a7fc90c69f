"""What the gather reads and writes."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class StepRows:
    """Static tensors by row, rewritten for every step; R = padded requests, cut by the caller.

    Attributes:
        certain: int64 [R], last token of each request, 0 for padding.
        drafts: int64 [R, K], -1 for padding.
        scheduled: int32 [R], real drafts, -1 for padding.
        kv_lens: int32 [R], KV length before the step: tokens so far less the certain one; 0 for padding.
        scores: float32 [R, K], 0 for padding.
        slots: int64 [R], -1 for padding.
        block_table: int32 [R, W], page ids; all 0, the null page, for padding.
    """

    certain: torch.Tensor
    drafts: torch.Tensor
    scheduled: torch.Tensor
    kv_lens: torch.Tensor
    scores: torch.Tensor
    slots: torch.Tensor
    block_table: torch.Tensor
