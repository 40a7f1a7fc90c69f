"""Reference of the placing of tokens, in plain torch over static shapes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Primes: neighbouring positions, and one position of two requests, get unlike ids.
POSITION_STEP = 7919
REQUEST_STEP = 104_729


@dataclass(frozen=True, slots=True)
class TokenPlaces:
    """Per query token, on the device; a padding token has position, id and visible 0 and cell -1.

    Attributes:
        ids: int32 [T]; a token id made of position and request: this decoder reads no text.
        position: int32 [T].
        visible: int32 [T]; complete cache entries up to and with its own position.
        cell: int64 [T]; page x page size + place of the entry that this token completes, -1 where none.
    """

    ids: torch.Tensor
    position: torch.Tensor
    visible: torch.Tensor
    cell: torch.Tensor


def place_tokens_reference(
    token_request: torch.Tensor,
    token_offset: torch.Tensor,
    kv_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    ratio: int,
    page: int,
    vocabulary: int,
) -> TokenPlaces:
    """Return the places of all padded tokens; arguments as ``place_tokens`` documents them."""
    request = token_request.long()
    real = request >= 0
    request = request.clamp(min=0)
    position = torch.where(real, kv_lens[request].long() + token_offset.long(), 0)
    ids = (position * POSITION_STEP + block_table[request, 0].long() * REQUEST_STEP) % vocabulary
    visible = torch.where(real, (position + 1) // ratio, 0)
    entry = position // ratio
    pages = block_table[request, (entry // page).clamp(max=block_table.shape[1] - 1)].long()
    completes = real & ((position + 1) % ratio == 0)
    cell = torch.where(completes, pages * page + entry % page, -1)
    return TokenPlaces(torch.where(real, ids, 0).int(), position.int(), visible.int(), cell)
