"""Which tokens of which chunk each program of the prefill attention takes; once a step for all layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from adaverify_contracts import ceil_div

Piece = tuple[np.ndarray, int, int]
"""A chunk of a prompt: its row of the host block table, int32 [W], its first position and its length."""

FIELDS = 4


@dataclass(frozen=True, slots=True)
class PrefillTiles:
    """The chunks of one step as the kernel reads them.

    Attributes:
        tiles: int32 [P, 4]: first token row, tokens, position of the first one, row of ``table``.
        table: int32 [C, W'], pages of each chunk, as many as the longest context needs.
        tokens: of all chunks.
        size: most tokens of a tile.
    """

    tiles: torch.Tensor
    table: torch.Tensor
    tokens: int
    size: int


def lay_tiles(starts: np.ndarray, lengths: np.ndarray, size: int) -> np.ndarray:
    """Return the tiles of chunks that lie one after the other, int32 [P, 4]; chunk i has row i of the table.

    Args:
        starts: int32 [C], first positions.
        lengths: int32 [C], tokens, each at least 1.
        size: most tokens of a tile.
    """
    counts = -(-lengths // size)
    chunk = np.repeat(np.arange(len(lengths), dtype=np.int32), counts)
    within = (np.arange(len(chunk)) - np.repeat(np.cumsum(counts) - counts, counts)) * size
    begins = np.cumsum(lengths) - lengths
    tiles = np.empty((len(chunk), FIELDS), dtype=np.int32)
    tiles[:, 0] = begins[chunk] + within
    tiles[:, 1] = np.minimum(lengths[chunk] - within, size)
    tiles[:, 2] = starts[chunk] + within
    tiles[:, 3] = chunk
    return tiles


def plan_tiles(pieces: Sequence[Piece], size: int, page_size: int, device: torch.device) -> PrefillTiles:
    """Return the tiles of a step's chunks; one copy to ``device``, which is not waited for.

    Args:
        pieces: at least one chunk of at least one token, in token order.
        size: most tokens of a tile.
        page_size: tokens in one page.
        device: of the cache.
    """
    starts, lengths = (np.array([piece[at] for piece in pieces], dtype=np.int32) for at in (1, 2))
    tiles = lay_tiles(starts, lengths, size)
    width = ceil_div(int((starts + lengths).max()), page_size)
    table = np.concatenate([piece[0][:width] for piece in pieces], dtype=np.int32)
    # One copy for both. The table behind whole tiles begins at a multiple of 16 bytes, as Triton asks.
    sent = torch.from_numpy(np.concatenate((tiles.reshape(-1), table))).to(device, non_blocking=True)
    return PrefillTiles(
        tiles=sent[: tiles.size].view(tiles.shape),
        table=sent[tiles.size :].view(len(pieces), width),
        tokens=int(lengths.sum()),
        size=size,
    )
