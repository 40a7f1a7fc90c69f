"""What every row kernel's launch shares: the outputs in order and the constants of one deployment."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from adaverify_contracts import DecodeBatch, Limits
from adaverify_metadata.ops.launch_config import LaunchConfig, next_power_of_two

RowLaunch = Callable[[DecodeBatch, int], None]
"""``launch(batch, tokens_per_row)`` enqueues one kernel on the current stream; capturable."""

OUTPUTS = ("row_lens", "schedule_lens", "block_table", "row_request", "row_token", "token_slot")


def row_constants(
    limits: Limits, config: LaunchConfig, buffers: Mapping[str, torch.Tensor]
) -> dict[str, int]:
    """Return the compile-time constants, equal for every batch, so that one builder compiles one kernel."""
    return {
        "REQUESTS": next_power_of_two(limits.max_requests),
        "ROWS": config.rows_per_program,
        "COLUMNS": max(4, min(config.table_columns, next_power_of_two(limits.table_width))),
        "ROW_STRIDE": buffers["block_table"].stride(0),
        "WIDTH": limits.table_width,
        "PAGE": limits.page_size,
        "RATIO": limits.compress_ratio,
        "CP_SIZE": limits.context_parallel_size,
        "CP_RANK": limits.context_parallel_rank,
        "CP_INTERLEAVE": limits.context_parallel_interleave,
    }
