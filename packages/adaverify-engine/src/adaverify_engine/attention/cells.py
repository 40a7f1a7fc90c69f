"""From kernel rows to a [requests, queries] grid: computed once a step, used by every layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from adaverify_contracts import DecodeRows


@dataclass(frozen=True, slots=True)
class QueryCells:
    """Where each query token of a decode step sits in a grid of ``requests`` x ``queries`` cells.

    Attributes:
        queries: Q, at least the longest query.
        token: int64 [requests x Q], query token of each cell, 0 where the cell is empty.
        lens: int64 [requests, Q], KV length of each cell as the rows say, at least 1.
        cell: int64 [T], cell of each query token as ``token_slot`` says; 0 for padding tokens.
        last_row: int64 [requests], the row that reaches furthest; its block table covers the request.
    """

    queries: int
    token: torch.Tensor
    lens: torch.Tensor
    cell: torch.Tensor
    last_row: torch.Tensor


def locate(rows: DecodeRows, query_start_loc: torch.Tensor, queries: int) -> QueryCells:
    """Return the cells of ``rows``; static shapes, no host read.

    Args:
        rows: decode rows of any strategy.
        query_start_loc: int32 [R + 1] of the same step.
        queries: upper bound of any query length.
    """
    requests = len(query_start_loc) - 1
    dump = requests * queries
    owner = rows.row_request.long()
    request = owner[:, None].expand(rows.row_token.shape).reshape(-1)
    token = rows.row_token.reshape(-1).long()
    real = (token >= 0) & (request < requests)
    start = query_start_loc.long()[request.clamp(max=requests - 1)]
    cell_of_slot = torch.where(real, request * queries + token - start, dump)
    token_of_cell = torch.zeros(dump + 1, dtype=torch.int64, device=token.device)
    token_of_cell.index_copy_(0, cell_of_slot, token.clamp(min=0))
    lens = torch.ones(dump + 1, dtype=torch.int64, device=token.device)
    lens.index_copy_(0, cell_of_slot, rows.schedule_lens.reshape(-1).long())
    cell = cell_of_slot[rows.token_slot.long()]
    last_row = torch.zeros(requests + 1, dtype=torch.int64, device=token.device)
    # Rows of one request rise, so the largest row number is the row that reaches furthest.
    last_row.scatter_reduce_(
        0, owner.clamp(max=requests), torch.arange(len(owner), device=token.device), "amax", include_self=True
    )
    return QueryCells(
        queries=queries,
        token=token_of_cell[:dump],
        lens=lens[:dump].view(requests, queries),
        cell=torch.where(cell < dump, cell, 0),
        last_row=last_row[:requests],
    )
