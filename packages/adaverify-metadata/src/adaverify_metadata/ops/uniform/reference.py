"""Reference of the uniform strategy: one row a request, as wide as the common query length."""

from __future__ import annotations

import torch

from adaverify_contracts import DecodeBatch, DecodeRows, LayoutError, Limits
from adaverify_metadata.layout import RowLayout, null_request, reference_rows, token_requests


def uniform_width(batch: DecodeBatch, limits: Limits) -> int:
    """Return N, the common query length.

    Raises:
        LayoutError: the batch is ragged, or the length exceeds K + 1.
    """
    width = batch.uniform_query_len
    if width is None or width > limits.max_query_len:
        raise LayoutError(
            "uniform rows need one query length for all requests, within K + 1",
            arrived=width,
            allowed=f"DecodeBatch.uniform_query_len in 1 .. {limits.max_query_len}",
            remedy="use a strategy that reads device lengths for ragged batches",
        )
    return width


def uniform_layout(batch: DecodeBatch, width: int) -> RowLayout:
    """Return the layout of one row a request, M = requests, N = ``width``.

    Which requests are real is read from the device: a request of length zero is a padding row, and a shorter
    request would be padded in front, as in paired rows.
    """
    device, requests = batch.seq_lens.device, batch.requests
    length = batch.query_start_loc.diff().long()
    rows, slots = torch.arange(requests, device=device), torch.arange(width, device=device)
    front = width - length
    start = batch.query_start_loc[:-1].long()
    within = slots - front[:, None]
    token = torch.where(within >= 0, start[:, None] + within, -1)
    request = torch.where(length > 0, rows, requests)

    tokens = torch.arange(batch.padded_tokens, device=device)
    owner = token_requests(batch)
    # Padding tokens point at the first padding slot: the front of the first request that is short.
    first_short = null_request(torch.where(length < width, rows, requests), requests).min()
    spare = torch.where(first_short < requests, first_short * width, 0)
    first_slot = null_request(rows * width + front - start)
    token_slot = torch.where(owner < requests, first_slot[owner] + tokens, spare)
    return RowLayout(request, token, token_slot)


def uniform_rows(batch: DecodeBatch, limits: Limits) -> DecodeRows:
    """Return one row a request, ``batch.uniform_query_len`` tokens wide; padding requests are zero rows.

    Raises:
        LayoutError: the batch is ragged, or the length exceeds K + 1.
    """
    layout = uniform_layout(batch, uniform_width(batch, limits))
    return reference_rows("uniform", batch, limits, layout).rows
