"""From the head vectors of a batch's tokens to the grid that attention reads, and back: one gather each."""

from __future__ import annotations

import torch

from adaverify_engine.attention.cells import QueryCells


class HeadVectors:
    """Gathers of single head vectors, so that rows and heads change places in the same copy.

    A gather of tokens and a permuted copy took 5.3 ms a step, there and back; the gathers of vectors take 4.1
    (30 layers, 16 requests, 80 tokens, two cores). Indices depend on strides alone, and are kept.

    Args:
        cells: of the step.
        requests: R.
        group: query heads for each KV head.
    """

    def __init__(self, cells: QueryCells, requests: int, group: int) -> None:
        self._cells, self._requests, self._group = cells, requests, group
        self._there: tuple[object, torch.Tensor] | None = None
        self._back: tuple[object, torch.Tensor] | None = None

    def gather(self, query: torch.Tensor) -> torch.Tensor:
        """Return [R x kv_heads x group x Q, head_dim] of query [T, heads, head_dim]."""
        heads = query.shape[1]
        vectors, (token, head) = _as_vectors(query)
        if self._there is None or self._there[0] != (heads, token, head):
            at = self._cells.token.view(self._requests, 1, self._cells.queries) * token
            at = at + torch.arange(heads, device=at.device)[:, None] * head
            self._there = ((heads, token, head), at.reshape(-1))
        return vectors.index_select(0, self._there[1])

    def scatter(self, out: torch.Tensor) -> torch.Tensor:
        """Return [T, heads, head_dim] of out [R, kv_heads, group x Q, head_dim]."""
        _, kv_heads, _, dim = out.shape
        vectors, (request, head, place) = _as_vectors(out)
        if self._back is None or self._back[0] != (kv_heads, request, head, place):
            row, query = self._cells.cell // self._cells.queries, self._cells.cell % self._cells.queries
            each = torch.arange(kv_heads * self._group, device=row.device)
            inside = (each // self._group) * head + (each % self._group) * self._cells.queries * place
            at = row[:, None] * request + inside + query[:, None] * place
            self._back = ((kv_heads, request, head, place), at.reshape(-1))
        return vectors.index_select(0, self._back[1]).view(-1, kv_heads * self._group, dim)


def _as_vectors(data: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """Return ``data`` as [n, head_dim] without a copy, and by how many vectors each axis steps.

    A tensor whose vectors do not lie on a grid of whole vectors is copied first.
    """
    dim = data.shape[-1]
    strides = data.stride()
    if strides[-1] != 1 or any(stride % dim for stride in strides[:-1]):
        data = data.contiguous()
        strides = data.stride()
    steps = [stride // dim for stride in strides[:-1]]
    count = 1 + sum((size - 1) * step for size, step in zip(data.shape[:-1], steps, strict=True))
    return data.as_strided((count, dim), (dim, 1)), steps
