"""Uniform batches in the rows that this chip's kernel takes: one query token a row, joined by request."""

from __future__ import annotations

from adaverify_contracts import DecodeBatch, DecodeRows, LayoutError
from adaverify_metadata import VarlenRowBuilder


class VarlenUniformRowBuilder(VarlenRowBuilder):
    """Rows of ``varlen`` for batches whose common query length the host knows; ragged batches are refused.

    Without it full verification would be laid out as wide rows without a schedule, which the adapter refuses:
    every listed build reads single-token rows with request indices, and the newer ones nothing else.
    """

    def build(self, batch: DecodeBatch) -> DecodeRows:
        """Write this step's rows into the static buffers and return views of them.

        Raises:
            LayoutError: the batch is ragged, longer than K + 1, or does not fit the limits.
        """
        length, longest = batch.uniform_query_len, self.limits.max_query_len
        if length is None or length > longest:
            raise LayoutError(
                f"strategy {self.strategy!r} cannot build this batch",
                arrived="a ragged batch" if length is None else f"query length {length}",
                allowed=f"a batch with uniform_query_len 1 .. {longest} (K + 1)",
                remedy="use varlen for ragged batches, and the prefill path for prompt chunks",
            )
        return super().build(batch)
