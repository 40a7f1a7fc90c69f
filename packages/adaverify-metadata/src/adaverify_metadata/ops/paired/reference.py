"""Reference of the paired strategy: two query tokens of one request a row, an odd one padded in front."""

from __future__ import annotations

import torch

from adaverify_contracts import DecodeBatch, DecodeRows, Limits
from adaverify_metadata.layout import RowLayout, null_request, reference_rows, token_requests


def paired_row_count(padded_tokens: int, requests: int) -> int:
    """Return M, rows that hold any split of ``padded_tokens`` tokens over ``requests`` requests.

    A request of q tokens takes ceil(q / 2) rows, so the sum is at most (tokens + requests) / 2, and no row is
    without a token.
    """
    return min(padded_tokens, (padded_tokens + requests) // 2)


def paired_layout(batch: DecodeBatch) -> RowLayout:
    """Return the layout of two tokens a row, N = 2."""
    device, requests = batch.seq_lens.device, batch.requests
    count = paired_row_count(batch.padded_tokens, requests)
    length = batch.query_start_loc.diff().long()
    taken = (length + 1) // 2
    until = taken.cumsum(0)
    start, length = null_request(batch.query_start_loc[:-1]), null_request(length)
    # First slot of each request that holds a token: the front slot of an odd request stays empty.
    front = 2 * null_request(until - taken) + length % 2

    rows = torch.arange(count, device=device)
    request = torch.searchsorted(until, rows, right=True)
    slot = 2 * rows[:, None] + torch.arange(2, device=device)
    within = slot - front[request][:, None]
    real = (request < requests)[:, None] & (within >= 0)
    token = torch.where(real, start[request][:, None] + within, -1)

    tokens = torch.arange(batch.padded_tokens, device=device)
    owner = token_requests(batch)
    # A padding token needs a padding slot. If the last row is taken, every request is odd (that is how the
    # tokens fill (T + R) // 2 rows with one missing), so slot 0 is the empty front of request 0.
    spare = torch.where(taken.sum() < count, 2 * count - 1, 0)
    token_slot = torch.where(owner < requests, front[owner] + tokens - start[owner], spare)
    return RowLayout(request, token, token_slot)


def paired_rows(batch: DecodeBatch, limits: Limits) -> DecodeRows:
    """Return rows of two query tokens of one request (design section 6).

    Seq_lens [10, 7, 12, 0] with query lengths [3, 1, 4, 0] give row lengths
    [[0, 8], [9, 10], [0, 7], [9, 10], [11, 12]], then padding rows of zeros.
    """
    return reference_rows("paired", batch, limits, paired_layout(batch)).rows
