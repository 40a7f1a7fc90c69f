"""What the send kernel does, in torch."""

from __future__ import annotations

import torch


def send_reference(confidences: torch.Tensor, entry: torch.Tensor, ring: torch.Tensor) -> None:
    """Store confidences in the rows of one ring entry; rows beyond them stay as they were.

    Args:
        confidences: float32 [R, K].
        entry: int32 [1]; an entry of the ring. An index out of range counts as the last entry, the bin.
        ring: float32 [entries, at least R, K] on the same device, written in place.
    """
    last = ring.shape[0] - 1
    index = entry.to(torch.int64)
    index = torch.where((index < 0) | (index > last), last, index)
    ring[:, : confidences.shape[0]].index_copy_(0, index, confidences[None])
