"""Decode attention over paged KV, driven by the decode rows.

softmax(q k^T head_dim^-0.5 + bias) v, where bias is 0 up to the row's length and -inf past it. The query
heads that share a KV head are stacked along the query axis, so keys and values are never expanded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from adaverify_contracts import DecodeRows, ceil_div
from adaverify_engine.attention.cells import locate
from adaverify_engine.attention.runs import Run, arithmetic_runs, consecutive
from adaverify_engine.cache import PagedCache

MAX_VIEWS = 4
"""More strided views than this and one gather is cheaper: a call costs about 30 us, gathering 16 requests x
384
tokens about 250 us (bfloat16, two cores)."""
_ROUND = 16
"""Key lengths are rounded up to this, so that the arithmetic changes shape once in 16 tokens and not at
each."""


@dataclass(frozen=True, slots=True)
class _Group:
    """One attention call: cells of ``members`` (None for all, in order) over a view or gathered pages."""

    members: torch.Tensor | None
    bias: torch.Tensor
    tokens: int
    start: int
    stride: int
    pages: torch.Tensor | None


class DecodeAttention:
    """Attention of one step's decode tokens, planned once and run in every layer.

    On a CPU the rows' lengths and pages are read here to pick views; on other devices nothing is read back
    and pages are gathered for the longest possible sequence, where ``PagedDecodeAttention`` cannot serve.

    Args:
        rows: decode rows of the step.
        query_start_loc: int32 [R + 1] of the step.
        queries: upper bound of any query length this step.
        max_kv_len: host upper bound of any KV length this step.
        group: query heads for each KV head.
        cache: the paged cache.
    """

    def __init__(
        self,
        rows: DecodeRows,
        query_start_loc: torch.Tensor,
        *,
        queries: int,
        max_kv_len: int,
        group: int,
        cache: PagedCache,
    ) -> None:
        self._cache, self._group = cache, group
        self._cells = locate(rows, query_start_loc, queries)
        table = rows.block_table[self._cells.last_row]
        self._requests = len(query_start_loc) - 1
        self._groups = self._plan(table, max_kv_len)
        # Uniform batches in order, the common case, need no gathering of queries (10 us a layer).
        cells = self._requests * queries
        full = table.device.type == "cpu" and len(rows.token_slot) == cells
        self._dense = full and bool((self._cells.token == torch.arange(cells)).all())

    def __call__(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Return [T, heads, head_dim] for query [T, heads, head_dim]."""
        grid = self._stack(query)
        keys, values = self._cache.layer(layer)
        if len(self._groups) == 1 and self._groups[0].members is None:
            return self._unstack(self._attend(self._groups[0], grid, keys, values))
        out = torch.empty_like(grid)
        for group in self._groups:
            members = slice(None) if group.members is None else group.members
            out[members] = self._attend(group, grid[members], keys, values)
        return self._unstack(out)

    def _attend(
        self, group: _Group, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        key, value = self._read(group, keys, len(query)), self._read(group, values, len(query))
        return scaled_dot_product_attention(query, key, value, attn_mask=group.bias)

    def _read(self, group: _Group, data: torch.Tensor, count: int) -> torch.Tensor:
        """Return [count, kv_heads, tokens, head_dim] of one layer's keys or values."""
        tokens, heads, dim = data.shape
        page = self._cache.page_size
        if group.pages is None:
            row = heads * dim
            return data.as_strided(
                (count, heads, group.tokens, dim),
                (group.stride * page * row, dim, row, 1),
                data.storage_offset() + group.start * page * row,
            )
        blocks = data.view(tokens // page, page * heads * dim).index_select(0, group.pages)
        return blocks.view(count, -1, heads, dim)[:, : group.tokens].transpose(1, 2)

    def _stack(self, query: torch.Tensor) -> torch.Tensor:
        """Return [R, kv_heads, group x Q, head_dim]."""
        _, heads, dim = query.shape
        shape = (self._requests, self._cells.queries, heads // self._group, self._group, dim)
        grid = (query if self._dense else query.index_select(0, self._cells.token)).view(shape)
        return grid.permute(0, 2, 3, 1, 4).reshape(shape[0], shape[2], -1, dim)

    def _unstack(self, out: torch.Tensor) -> torch.Tensor:
        requests, kv_heads, _, dim = out.shape
        grid = out.view(requests, kv_heads, self._group, self._cells.queries, dim).permute(0, 3, 1, 2, 4)
        flat = grid.reshape(requests * self._cells.queries, kv_heads * self._group, dim)
        return flat if self._dense else flat.index_select(0, self._cells.cell)

    def _plan(self, table: torch.Tensor, max_kv_len: int) -> tuple[_Group, ...]:
        if table.device.type != "cpu":
            return (self._gathered(table, max_kv_len),)
        page, lens = self._cache.page_size, self._cells.lens.amax(dim=1).numpy()
        longest = int(lens.max())
        host = table.numpy()[:, : ceil_div(longest, page)]
        if consecutive(host, -(-lens // page)):
            runs = arithmetic_runs(tuple(host[:, 0].tolist()))
            if len(runs) <= MAX_VIEWS:
                return tuple(self._viewed(run, lens) for run in runs)
        return (self._gathered(table, longest),)

    def _viewed(self, run: Run, lens: np.ndarray) -> _Group:
        page = self._cache.page_size
        last = run.start + run.stride * (len(run.members) - 1)
        # A short request's view may reach past its own pages, where the bias hides it, but not past the pool.
        inside = self._cache.data.shape[2] - last * page
        tokens = min(ceil_div(int(lens[list(run.members)].max()), _ROUND) * _ROUND, inside)
        everyone = run.members == tuple(range(self._requests))
        members = None if everyone else torch.tensor(run.members)
        return _Group(members, self._bias(members, tokens), tokens, run.start, run.stride, None)

    def _gathered(self, table: torch.Tensor, longest: int) -> _Group:
        page = self._cache.page_size
        columns = min(table.shape[1], ceil_div(longest, page))
        pages = table[:, :columns].reshape(-1).long()
        return _Group(None, self._bias(None, columns * page), columns * page, 0, 0, pages)

    def _bias(self, members: torch.Tensor | None, tokens: int) -> torch.Tensor:
        """Return [n, 1, group x Q, tokens]: 0 where a cell may look, -inf elsewhere."""
        lens = self._cells.lens if members is None else self._cells.lens[members]
        hidden = torch.arange(tokens, device=lens.device) >= lens[:, None, :, None]
        bias = torch.zeros(hidden.shape, dtype=self._cache.dtype, device=lens.device)
        bias.masked_fill_(hidden, float("-inf"))
        count, _, queries, _ = bias.shape
        wide = bias[:, :, None].expand(count, 1, self._group, queries, tokens)
        return wide.reshape(count, 1, self._group * queries, tokens)
