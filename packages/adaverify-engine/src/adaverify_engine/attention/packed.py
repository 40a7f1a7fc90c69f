"""Prefill attention of many chunks at once: on an accelerator a launch costs more than some padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from adaverify_contracts import ceil_div
from adaverify_engine.attention.prefill import ChunkAttention
from adaverify_engine.cache import PagedCache

Piece = tuple[np.ndarray, int, int]
"""A chunk of a prompt: its row of the host block table, int32 [W], its first position and its length."""

# Masked attention reads a mask whose rows begin at multiples of this.
_ALIGNED = 16


class PackedChunks:
    """Attention of several chunks, in token order, in one product for all chunks of about the same size.

    One by one, a layer takes some fifteen operations a chunk. Here it takes as many for all chunks whose
    length and context are equal up to a factor of 2, to which they are padded: at most four times the work,
    of which there is little, as many chunks in one step are short ones. A padding query repeats its chunk's
    last one, a padding key is hidden.

    Args:
        pieces: the chunks; their own keys and values are already in the cache.
        group: query heads for each KV head.
        cache: the paged cache.

    Attributes:
        length: tokens of all chunks.
    """

    def __init__(self, pieces: Sequence[Piece], group: int, cache: PagedCache) -> None:
        begins = np.cumsum([0, *(length for _, _, length in pieces)])
        self.length = int(begins[-1])
        alike: dict[tuple[int, int], list[int]] = {}
        for number, (_, start, length) in enumerate(pieces):
            size = (length - 1).bit_length(), (start + length - 1).bit_length()
            alike.setdefault(size, []).append(number)
        self._grids, back, before = [], np.zeros(self.length, dtype=np.int64), 0
        for numbers in alike.values():
            some = [pieces[number] for number in numbers]
            grid = _Grid(some, begins[numbers], group, cache)
            self._grids.append(grid)
            for row, number in enumerate(numbers):
                length = pieces[number][2]
                first = before + row * grid.width
                back[begins[number] : begins[number] + length] = np.arange(first, first + length)
            before += len(numbers) * grid.width
        self._back = torch.from_numpy(back).to(cache.data.device, non_blocking=True)

    def __call__(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Return [length, heads, head_dim] for query [length, heads, head_dim]."""
        parts = [grid(layer, query) for grid in self._grids]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).index_select(0, self._back)


class _Grid:
    """Chunks of about the same size as one padded batch [C, width]."""

    def __init__(self, pieces: Sequence[Piece], begins: np.ndarray, group: int, cache: PagedCache) -> None:
        self._cache, self._group, self._count = cache, group, len(pieces)
        starts, lengths = (np.array([piece[at] for piece in pieces], dtype=np.int64) for at in (1, 2))
        ends = (starts + lengths)[:, None]
        self.width, self._end = int(lengths.max()), ceil_div(int(ends.max()), _ALIGNED) * _ALIGNED
        offset = np.minimum(np.arange(self.width), lengths[:, None] - 1)
        key = np.minimum(np.arange(self._end), ends - 1)
        tables = np.stack([piece[0] for piece in pieces]).astype(np.int64)
        size = cache.page_size
        slots = np.take_along_axis(tables, key // size, axis=1) * size + key % size
        # One copy for all three.
        parts = (begins[:, None] + offset, slots, starts[:, None] + offset)
        sent = torch.from_numpy(np.concatenate([part.reshape(-1) for part in parts]))
        counts = [part.size for part in parts]
        self._take, self._slots, position = torch.split(sent.to(cache.data.device, non_blocking=True), counts)
        position = position.view(self._count, self.width).repeat(1, group)
        hidden = torch.arange(self._end, device=cache.data.device) > position[..., None]
        bias = torch.zeros(hidden.shape, dtype=cache.dtype, device=hidden.device)
        self._bias = bias.masked_fill_(hidden, float("-inf"))[:, None]

    def __call__(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Return [C x width, heads, head_dim] for query [tokens, heads, head_dim]."""
        count, width, group = self._count, self.width, self._group
        heads, dim = query.shape[1:]
        grid = query.index_select(0, self._take).view(count, width, heads // group, group, dim)
        stacked = grid.permute(0, 2, 3, 1, 4).reshape(count, heads // group, group * width, dim)
        key, value = (
            data.index_select(0, self._slots).view(count, self._end, heads // group, dim).transpose(1, 2)
            for data in self._cache.layer(layer)
        )
        out = scaled_dot_product_attention(stacked, key, value, attn_mask=self._bias)
        split = out.view(count, heads // group, group, width, dim).permute(0, 3, 1, 2, 4)
        return split.reshape(count * width, heads, dim)


def attention_of(
    pieces: Sequence[Piece], group: int, cache: PagedCache
) -> Sequence[ChunkAttention | PackedChunks]:
    """Return the attention of a step's chunks, in token order.

    On a CPU each chunk has its own: keys are read where they lie, and a call costs little. Elsewhere several
    are packed.
    """
    if cache.data.device.type == "cpu" or len(pieces) == 1:
        return [ChunkAttention(*piece, group, cache) for piece in pieces]
    return [PackedChunks(pieces, group, cache)]
