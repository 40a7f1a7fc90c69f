"""Reference of the flatten strategy: slot t holds query token t."""

from __future__ import annotations

import torch

from adaverify_contracts import DecodeBatch, DecodeRows, Limits
from adaverify_metadata.layout import RowLayout, reference_rows, token_requests


def flatten_layout(batch: DecodeBatch) -> RowLayout:
    """Return the layout of one row a query token, M = padded_tokens, N = 1."""
    request = token_requests(batch)
    slots = torch.arange(batch.padded_tokens, device=request.device)
    token = torch.where(request < batch.requests, slots, -1)
    return RowLayout(request, token[:, None], slots)


def flatten_rows(batch: DecodeBatch, limits: Limits) -> DecodeRows:
    """Return one row a query token (design section 6).

    Seq_lens [10, 7, 12, 0] with query lengths [3, 1, 4, 0] in 10 padded rows give row lengths
    [8, 9, 10, 7, 9, 10, 11, 12, 0, 0].
    """
    return reference_rows("flatten", batch, limits, flatten_layout(batch)).rows
