"""Prefill attention: one prompt chunk over its request's pages, ordinary causal."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from adaverify_contracts import ceil_div
from adaverify_engine.cache import PagedCache


class ChunkAttention:
    """Attention of one chunk of ``length`` prompt tokens that starts at position ``start``.

    Args:
        pages: int32 [W], the request's row of the host block table.
        start: tokens computed before this chunk.
        length: tokens in the chunk.
        group: query heads for each KV head.
        cache: the paged cache; the chunk's own keys and values are already in it.
    """

    def __init__(self, pages: np.ndarray, start: int, length: int, group: int, cache: PagedCache) -> None:
        self._cache, self._group, self.length = cache, group, length
        self._end = start + length
        needed = pages[: ceil_div(self._end, cache.page_size)]
        run = bool((np.diff(needed) == 1).all())
        self._first = int(needed[0]) * cache.page_size if run else None
        device = cache.data.device
        at = torch.arange(self._end, device=device)
        slots = torch.from_numpy(needed.astype(np.int64)).to(device)[at // cache.page_size]
        self._slots = slots * cache.page_size + at % cache.page_size
        hidden = at > torch.arange(start, self._end, device=device)[:, None]
        bias = torch.zeros(hidden.shape, dtype=cache.dtype, device=device).masked_fill_(hidden, float("-inf"))
        self._bias = bias.repeat(group, 1)[None, None]

    def __call__(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Return [length, heads, head_dim] for query [length, heads, head_dim]."""
        count, heads, dim = query.shape
        grid = query.view(count, heads // self._group, self._group, dim).permute(1, 2, 0, 3)
        stacked = grid.reshape(1, heads // self._group, self._group * count, dim)
        key, value = (self._read(data) for data in self._cache.layer(layer))
        out = scaled_dot_product_attention(stacked, key, value, attn_mask=self._bias)
        return (
            out.view(heads // self._group, self._group, count, dim).permute(2, 0, 1, 3).reshape(query.shape)
        )

    def _read(self, data: torch.Tensor) -> torch.Tensor:
        """Return [1, kv_heads, end, head_dim], in place when the pages are a run."""
        if self._first is None:
            return data.index_select(0, self._slots).transpose(0, 1)[None]
        return data[self._first : self._first + self._end].transpose(0, 1)[None]
