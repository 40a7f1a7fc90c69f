"""Attention of a step's prompt chunks: all in one launch on an accelerator, each by itself on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from adaverify_contracts import ModelGeometry
from adaverify_engine.attention.paged import kernel_obstacle
from adaverify_engine.attention.prefill import ChunkAttention
from adaverify_engine.cache import PagedCache
from adaverify_engine.ops.paged_prefill import (
    Piece,
    PrefillTiles,
    check_geometry,
    paged_prefill,
    plan_tiles,
    shape_of,
)

ONE_BY_ONE = "prompts-one-by-one"
"""Counted for each step on an accelerator whose prompts attended one after the other."""


class PagedChunks:
    """Attention of several chunks, in token order, straight over the pages; may be captured.

    Args:
        tiles: of the chunks; their own keys and values are in the cache when it is called.
        cache: the paged cache.

    Attributes:
        length: tokens of all chunks.
    """

    def __init__(self, tiles: PrefillTiles, cache: PagedCache) -> None:
        self._cache, self._tiles = cache, tiles
        self.length = tiles.tokens

    def __call__(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Return [length, heads, head_dim] for query [length, heads, head_dim]."""
        keys, values = self._cache.layer(layer)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        paged_prefill(query, keys, values, self._tiles, out, page_size=self._cache.page_size)
        return out


class PromptAttentionChoice:
    """Which attention an engine's prompts use, decided once when the engine is made.

    ``paged`` is the kernel, on an accelerator that Triton serves; ``torch`` is ``ChunkAttention``: the
    ordinary path of a CPU, where keys are read where they lie and a call costs little, and elsewhere a
    fallback that is counted every step.

    Args:
        geometry: of the model.
        cache: the paged cache.

    Attributes:
        name: ``paged`` or ``torch``.
        reason: why the kernel is not used; empty where it is.
        tile: most prompt tokens of a tile of the kernel.
    """

    def __init__(self, geometry: ModelGeometry, cache: PagedCache) -> None:
        self._cache, self._group = cache, geometry.heads // geometry.kv_heads
        device = cache.data.device
        self.reason = kernel_obstacle(
            device, lambda: check_geometry(geometry.head_dim, geometry.heads, geometry.kv_heads)
        )
        self.name = "torch" if self.reason else "paged"
        self.tile = shape_of(self._group, geometry.head_dim, cache.dtype).tokens
        self._is_fallback = bool(self.reason) and device.type != "cpu"
        self._fallbacks = 0

    def plan(self, pieces: Sequence[Piece]) -> Sequence[ChunkAttention | PagedChunks]:
        """Return the attention of a step's chunks, in token order; nothing for none."""
        if not pieces:
            return ()
        if self.name == "paged":
            data, page = self._cache.data, self._cache.page_size
            return (PagedChunks(plan_tiles(pieces, self.tile, page, data.device), self._cache),)
        self._fallbacks += self._is_fallback
        return tuple(ChunkAttention(*piece, self._group, self._cache) for piece in pieces)

    def take_fallbacks(self) -> tuple[str, ...]:
        """Return and forget the fallbacks since the last call, one name for each step that took one."""
        taken, self._fallbacks = self._fallbacks, 0
        return (ONE_BY_ONE,) * taken
