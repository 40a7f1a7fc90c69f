"""The ``Attend`` of one step: store, then decode rows and prefill chunks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from adaverify_engine.attention.decode import DecodeAttention
from adaverify_engine.attention.paged import PagedDecodeAttention
from adaverify_engine.attention.prefill import ChunkAttention
from adaverify_engine.cache import PagedCache


class StepAttention:
    """Attention over [decode tokens, then each chunk's tokens]; planned once, called once a layer.

    Args:
        cache: the paged cache.
        slots: int64 [T], KV slot of every query token of the step.
        decode: attention of the first ``decode_tokens`` tokens, or None when there are none.
        decode_tokens: padded decode tokens.
        chunks: attention of the chunks, in token order.
    """

    def __init__(
        self,
        cache: PagedCache,
        slots: torch.Tensor,
        decode: DecodeAttention | PagedDecodeAttention | None,
        decode_tokens: int,
        chunks: Sequence[ChunkAttention],
    ) -> None:
        self._cache, self._slots, self._decode = cache, slots, decode
        self._decode_tokens, self._chunks = decode_tokens, chunks

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Return [T, heads, head_dim]; see ``adaverify_contracts.Attend``."""
        self._cache.write(layer, key, value, self._slots)
        parts, at = [], self._decode_tokens
        if self._decode is not None:
            parts.append(self._decode(layer, query[:at]))
        for chunk in self._chunks:
            parts.append(chunk(layer, query[at : at + chunk.length]))
            at += chunk.length
        return parts[0] if len(parts) == 1 else torch.cat(parts)
