"""The grouped product of routed experts."""

from __future__ import annotations

import torch


def grouped_product(rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Return [N, outputs]: rows of group g times ``weights[g]`` transposed; rows past the last end are free.

    bfloat16 on CUDA is one grouped kernel that reads ``ends`` on the device: it only launches, and rows past
    the last end are left as they were allocated. Everything else multiplies group by group and reads ``ends``
    on the host, so it waits, and cannot be captured.

    Args:
        rows: [N, inputs], dense.
        weights: [groups, outputs, inputs], dense.
        ends: int32 [groups], where each group's rows end; never falls.
    """
    if rows.is_cuda and rows.dtype == torch.bfloat16:
        return torch._grouped_mm(rows, weights.transpose(1, 2), offs=ends)
    return grouped_product_reference(rows, weights, ends)


def grouped_product_reference(rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Return the grouped product, one group after the other; rows past the last end are 0."""
    out = torch.zeros((len(rows), weights.shape[1]), dtype=rows.dtype, device=rows.device)
    begin = 0
    for group, end in enumerate(ends.tolist()):
        if end > begin:
            out[begin:end] = rows[begin:end] @ weights[group].T
            begin = end
    return out
