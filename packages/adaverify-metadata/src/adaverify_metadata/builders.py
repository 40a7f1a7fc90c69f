"""The four strategies' builders."""

from __future__ import annotations

from adaverify_contracts import DecodeBatch
from adaverify_metadata.builder import RowBuilder
from adaverify_metadata.layout import RowLayout
from adaverify_metadata.ops.flatten.launch import prepare_flatten
from adaverify_metadata.ops.flatten.reference import flatten_layout
from adaverify_metadata.ops.launch_config import LaunchConfig
from adaverify_metadata.ops.paired.launch import prepare_paired
from adaverify_metadata.ops.paired.reference import paired_layout, paired_row_count
from adaverify_metadata.ops.row_launch import RowLaunch
from adaverify_metadata.ops.uniform.launch import prepare_uniform
from adaverify_metadata.ops.uniform.reference import uniform_layout, uniform_width
from adaverify_metadata.ops.varlen.launch import prepare_varlen
from adaverify_metadata.ops.varlen.reference import varlen_layout


class UniformRowBuilder(RowBuilder):
    """One row a request, as wide as the batch's common query length; ragged batches are refused.

    M = requests, N = ``batch.uniform_query_len``, padding requests are zero rows.
    """

    def _default_rows(self) -> int:
        return self._limits.max_requests

    def _widest_row(self) -> int:
        return self._limits.max_query_len

    def _shape(self, batch: DecodeBatch) -> tuple[int, int]:
        return batch.requests, uniform_width(batch, self._limits)

    def _layout(self, batch: DecodeBatch, width: int) -> RowLayout:
        return uniform_layout(batch, width)

    def _prepare(self, config: LaunchConfig) -> RowLaunch:
        return prepare_uniform(self._limits, config, self._buffers)


class FlattenRowBuilder(RowBuilder):
    """One row a query token, lengths from the device. M = padded_tokens, N = 1."""

    def _default_rows(self) -> int:
        return self._limits.max_tokens

    def _widest_row(self) -> int:
        return 1

    def _shape(self, batch: DecodeBatch) -> tuple[int, int]:
        return batch.padded_tokens, 1

    def _layout(self, batch: DecodeBatch, width: int) -> RowLayout:
        del width
        return flatten_layout(batch)

    def _prepare(self, config: LaunchConfig) -> RowLaunch:
        return prepare_flatten(self._limits, config, self._buffers)


class VarlenRowBuilder(FlattenRowBuilder):
    """Flattened rows with request indices, for kernels that join neighbouring rows of one request.

    Every row's table reaches the end of its request, because a joined run reads its first row's table.
    """

    def _layout(self, batch: DecodeBatch, width: int) -> RowLayout:
        del width
        return varlen_layout(batch)

    def _prepare(self, config: LaunchConfig) -> RowLaunch:
        return prepare_varlen(self._limits, config, self._buffers)

    def _grouped(self) -> bool:
        return True


class PairedRowBuilder(RowBuilder):
    """Two query tokens of one request a row, an odd one padded in front with length 0.

    M = min(padded_tokens, (padded_tokens + requests) // 2), N = 2.
    """

    def _default_rows(self) -> int:
        return paired_row_count(self._limits.max_tokens, self._limits.max_requests)

    def _widest_row(self) -> int:
        return 2

    def _shape(self, batch: DecodeBatch) -> tuple[int, int]:
        return paired_row_count(batch.padded_tokens, batch.requests), 2

    def _layout(self, batch: DecodeBatch, width: int) -> RowLayout:
        del width
        return paired_layout(batch)

    def _prepare(self, config: LaunchConfig) -> RowLaunch:
        return prepare_paired(self._limits, config, self._buffers)
