"""From a map of query tokens to row slots to everything an attention kernel reads, in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from adaverify_contracts import DecodeBatch, DecodeRows, Limits
from adaverify_metadata.lengths import local_lens


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Which query token sits in which slot; what a strategy decides, and all it decides.

    Attributes:
        request: int64 [M]; request of the row, R for a padding row.
        token: int64 [M, N]; query token in the slot, -1 where there is none.
        token_slot: int64 [T]; slot of each query token (the contract's rule for padding tokens applied).
        whole_request: True when a row's table must reach the end of its *request*: kernels that join
            neighbouring rows read the table of the first of them and the length of the last.
    """

    request: torch.Tensor
    token: torch.Tensor
    token_slot: torch.Tensor
    whole_request: bool = False


@dataclass(frozen=True, slots=True)
class ReferenceRows:
    """Rows built from a layout, and how many table columns of each row carry meaning.

    Attributes:
        rows: the rows, in fresh tensors; table columns past ``pages`` are 0.
        pages: int64 [M]; meaningful columns of ``rows.block_table``.
    """

    rows: DecodeRows
    pages: torch.Tensor


def token_requests(batch: DecodeBatch) -> torch.Tensor:
    """Return int64 [T]: the request of each query token by the device's boundaries, R for padding tokens."""
    tokens = torch.arange(batch.padded_tokens, device=batch.seq_lens.device, dtype=torch.int32)
    # The first request that ends after the token; requests of length zero end where they start and lose.
    return torch.searchsorted(batch.query_start_loc[1:], tokens, right=True)


def null_request(values: torch.Tensor, fill: int | torch.Tensor = 0) -> torch.Tensor:
    """Return int64 [R + 1]: ``values`` with the null request, to which all padding belongs, appended."""
    tail = torch.zeros_like(values[:1]) if len(values) else values.new_zeros(1)
    return torch.cat([values, tail + fill]).long()


def pages_of(lens: torch.Tensor, limits: Limits) -> torch.Tensor:
    """Return the pages that hold each length, never more than the table's width."""
    return (-torch.div(-lens, limits.page_size, rounding_mode="floor")).clamp(max=limits.table_width)


def reference_rows(strategy: str, batch: DecodeBatch, limits: Limits, layout: RowLayout) -> ReferenceRows:
    """Return the rows of a layout.

    The token at distance d from the end of its request sees ``seq_lens - d`` KV positions, clamped at 0 (a
    kernel that reads lengths unsigned takes -1 for 4e9), then compressed and localised.
    """
    device, requests = batch.seq_lens.device, batch.requests
    seq_lens, end = null_request(batch.seq_lens), null_request(batch.query_start_loc[1:])
    request = layout.request[:, None]
    seen = seq_lens[request] - (end[request] - 1 - layout.token)
    row_lens = local_lens(torch.where(layout.token >= 0, seen, 0), limits)
    reach = local_lens(seq_lens[layout.request], limits) if layout.whole_request else row_lens[:, -1]
    pages = pages_of(reach, limits)

    rows = torch.arange(len(layout.request), device=device)
    table = torch.zeros(len(rows), limits.table_width, dtype=torch.int32, device=device)
    if requests:
        needed = torch.arange(limits.table_width, device=device) < pages[:, None]
        # A page id of -1 (an unmapped page) becomes 0: kernels read it, and the caller masks its score.
        found = batch.block_table[layout.request.clamp(max=requests - 1)].clamp(min=0)
        table = torch.where(needed, found, table)
    row_request = torch.where(layout.request < requests, layout.request, requests + rows).int()
    built = DecodeRows(
        strategy=strategy,
        tokens_per_row=layout.token.shape[1],
        row_lens=row_lens.int(),
        schedule_lens=row_lens.clamp(min=1).int(),
        block_table=table,
        row_request=row_request,
        row_token=layout.token.int(),
        token_slot=layout.token_slot.int(),
        request_indices=row_request if layout.whole_request else None,
    )
    return ReferenceRows(built, pages)
