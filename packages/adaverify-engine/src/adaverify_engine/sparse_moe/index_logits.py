"""The indexer's scores in plain torch, where no kernel library serves."""

from __future__ import annotations

import torch

from adaverify_contracts import DecodeRows
from adaverify_metadata import paged_mqa_logits_reference


def index_logits_reference(
    query: torch.Tensor, weights: torch.Tensor, pool: torch.Tensor, rows: DecodeRows, width: int
) -> torch.Tensor:
    """Return masked scores float32 [M x N, width] by slot, as ``adaverify_contracts.PagedLogits`` has them.

    Reads lengths on the host: it waits, and cannot be captured.
    """
    token = rows.row_token.clamp(min=0).long()
    by_slot = query.view(torch.uint8)[token].view(query.dtype)
    return paged_mqa_logits_reference(
        by_slot, pool, weights[token].flatten(0, 1), rows.row_lens, rows.block_table, width
    )
