"""What the two operations of a recorded step read and write."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class RecordTables:
    """Recorded truth on the run device, by output position of the target's own text.

    Attributes:
        scores: float32 [P, K], what the drafter says when it drafts from a position.
        accepted: int32 [P], how many of those K drafts the target accepts.
    """

    scores: torch.Tensor
    accepted: torch.Tensor


@dataclass(frozen=True, slots=True)
class RecordSlots:
    """Where each request stands, by slot; S = max_requests.

    Attributes:
        cursor: int32 [S], its output position, begin .. end - 1.
        begin: int32 [S]; end: int32 [S], the sequence that it replays over and over.
        kv_len: int32 [S], KV length before its next step.
        prefix: int32 [S], the drafts that each schedules in a forced step.
        block_table: int32 [S, W], page ids.
        control: int32 [2]: drafts that everyone schedules, and whether ``prefix`` says it instead.
    """

    cursor: torch.Tensor
    begin: torch.Tensor
    end: torch.Tensor
    kv_len: torch.Tensor
    prefix: torch.Tensor
    block_table: torch.Tensor
    control: torch.Tensor


@dataclass(frozen=True, slots=True)
class RecordRows:
    """Static tensors by row, cut by the caller to R padded requests.

    Attributes:
        scheduled: int32 [R], -1 for padding; kv_lens: int32 [R], 0 for padding.
        scores: float32 [R, K], 0 for padding; slots: int64 [R], -1 for padding.
        block_table: int32 [R, W], 0 for padding.
    """

    scheduled: torch.Tensor
    kv_lens: torch.Tensor
    scores: torch.Tensor
    slots: torch.Tensor
    block_table: torch.Tensor
