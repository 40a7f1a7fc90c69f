"""The ``Attend`` of one step: store, then decode rows and prefill chunks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from adaverify_contracts import EngineError, LayoutError
from adaverify_contracts.describing import kind_of
from adaverify_engine.attention.decode import DecodeAttention
from adaverify_engine.attention.paged import PagedDecodeAttention
from adaverify_engine.attention.prefill import ChunkAttention
from adaverify_engine.attention.prompts import PagedChunks
from adaverify_engine.cache import PagedCache


class StepAttention:
    """Attention over [decode tokens, then each chunk's tokens]; planned once, called once a layer.

    Args:
        cache: the paged cache.
        slots: int64 [T], KV slot of every query token of the step.
        decode: attention of the first ``decode_tokens`` tokens, or None when there are none.
        decode_tokens: padded decode tokens.
        chunks: attention of the chunks, in token order.
        group: query heads of one KV head.
        padding: tokens behind all of these, which attend to nothing.
    """

    def __init__(
        self,
        cache: PagedCache,
        slots: torch.Tensor,
        decode: DecodeAttention | PagedDecodeAttention | None,
        decode_tokens: int,
        chunks: Sequence[ChunkAttention | PagedChunks],
        group: int,
        padding: int = 0,
    ) -> None:
        self._cache, self._slots, self._decode = cache, slots, decode
        self._decode_tokens, self._chunks, self._group = decode_tokens, chunks, group
        self._padding = padding

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Return [T, heads, head_dim]; see ``adaverify_contracts.Attend``.

        Raises:
            EngineError: the model called it with something else than its contract says.
        """
        try:
            self._cache.write(layer, key, value, self._slots)
            parts, at = [], self._decode_tokens
            if self._decode is not None:
                parts.append(self._decode(layer, query[:at]))
            for chunk in self._chunks:
                parts.append(chunk(layer, query[at : at + chunk.length]))
                at += chunk.length
            if self._padding:
                parts.append(query.new_zeros(query[at:].shape))
            return parts[0] if len(parts) == 1 else torch.cat(parts)
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, LayoutError) as error:
            # Asked only once it has gone wrong: what a layer passes costs the step no check.
            misfit = self._misfit(layer, query, key, value)
            if misfit is None:
                raise
            raise misfit from error

    def _misfit(self, layer: object, *passed: object) -> EngineError | None:
        """Return what was wrong with the arguments of a call, None when nothing was."""
        layers, heads, width = len(self._cache.data), *self._cache.data.shape[3:]
        tokens = len(self._slots)
        cached = (tokens, heads, width)
        wanted = ((tokens, heads * self._group, width), cached, cached)
        found = [getattr(one, "shape", None) for one in passed]
        kinds = {getattr(one, "dtype", None) for one in passed}
        whole = isinstance(layer, int) and -layers <= layer < layers
        if whole and list(wanted) == found and kinds == {self._cache.dtype}:
            return None
        told = [f"{kind_of(one)} {tuple(getattr(one, 'shape', ()))}" for one in passed]
        return EngineError(
            "the model called attend with something else than its contract",
            arrived=f"layer {layer}; query, key, value: {', '.join(told)} of {', '.join(map(str, kinds))}",
            allowed=f"layer 0 .. {layers - 1}; {', '.join(map(str, wanted))} of {self._cache.dtype}",
            remedy="report it to the author of the model's plugin",
        )
