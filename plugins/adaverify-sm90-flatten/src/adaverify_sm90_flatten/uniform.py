"""Uniform batches in rows that the kernel takes: whole queries of one or two tokens, pairs of longer ones."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from adaverify_contracts import DecodeBatch, DecodeRows, LayoutError, Limits
from adaverify_metadata import PairedRowBuilder, RowSchedule, UniformRowBuilder
from adaverify_sm90_flatten.decision import NATIVE_QUERY_ROWS


class NativeUniformRowBuilder:
    """Rows of native width for batches whose common query length the host knows.

    Query lengths 1 and 2 give one row a request, M = requests, N = the length. A longer query is cut into
    rows of two tokens of its request, an odd one padded in front: M = min(padded_tokens, (padded_tokens +
    requests) // 2), N = 2. Three query tokens a row are an error of the kernel library (vllm #43457), and so
    are eight. Pairs of eight tokens are faster than single tokens from 16 requests and context 8192 on, and
    1.7 to 2.7 us slower at 2048 (docs/measurements/2026-11-30-h200-logits.md).

    Args:
        strategy: name the rows carry.
        limits: the sizes the buffers are made for.
        device: where batches live.
        backend: ``torch`` or ``triton``.
        schedule: a work schedule to rebuild with the rows.
    """

    def __init__(
        self,
        strategy: str,
        limits: Limits,
        device: str | torch.device,
        *,
        backend: str,
        schedule: RowSchedule | None = None,
    ) -> None:
        self._strategy, self._longest = strategy, limits.max_query_len
        self._whole = UniformRowBuilder(strategy, limits, device, backend=backend, schedule=schedule)  # type: ignore[arg-type]
        self._pairs: PairedRowBuilder | None = None
        if limits.max_query_len > max(NATIVE_QUERY_ROWS):
            self._pairs = PairedRowBuilder(strategy, limits, device, backend=backend, schedule=schedule)  # type: ignore[arg-type]
        made = {f"whole_{name}": tensor for name, tensor in self._whole.buffers.items()}
        if self._pairs is not None:
            made |= {f"pairs_{name}": tensor for name, tensor in self._pairs.buffers.items()}
        self._buffers = MappingProxyType(made)

    @property
    def strategy(self) -> str:
        """Name of the strategy that owns these buffers."""
        return self._strategy

    @property
    def buffers(self) -> Mapping[str, torch.Tensor]:
        """Every static tensor by name; the schedule appears under both layouts and is one tensor."""
        return self._buffers

    def build(self, batch: DecodeBatch) -> DecodeRows:
        """Write this step's rows into the static buffers and return views of them.

        Raises:
            LayoutError: the batch is ragged, or does not fit the limits.
        """
        length = batch.uniform_query_len
        if length is None:
            raise LayoutError(
                f"strategy {self._strategy!r} cannot build a ragged batch",
                arrived=None,
                allowed="a batch with uniform_query_len",
                remedy="use flatten or paired, which read every length from the device",
            )
        if length > self._longest:
            # Pairs would hold it as long as its tokens fit, but a decode query has at most K + 1.
            raise LayoutError(
                f"the query length is beyond what strategy {self._strategy!r} was made for",
                arrived=length,
                allowed=f"1 .. {self._longest} (K + 1)",
                remedy="send prompt chunks down the prefill path, or allocate with more draft tokens",
            )
        if length in NATIVE_QUERY_ROWS or self._pairs is None:
            return self._whole.build(batch)
        return self._pairs.build(batch)
