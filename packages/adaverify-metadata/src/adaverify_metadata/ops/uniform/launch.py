"""Launch of the uniform kernel."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from adaverify_contracts import DecodeBatch, Limits, ceil_div
from adaverify_metadata._jit import kernel_for
from adaverify_metadata.ops.launch_config import LaunchConfig, next_power_of_two
from adaverify_metadata.ops.row_launch import OUTPUTS, RowLaunch, row_constants


def prepare_uniform(limits: Limits, config: LaunchConfig, buffers: Mapping[str, torch.Tensor]) -> RowLaunch:
    """Return a launch that builds one row a request into ``buffers``.

    The common query length is a runtime argument: K + 1 lengths, one compiled kernel.
    """
    kernel = kernel_for("adaverify_metadata.ops.uniform.kernel", "uniform_kernel", buffers["row_lens"].device)
    slots = next_power_of_two(limits.max_query_len)
    constants = row_constants(limits, config, buffers) | {"SLOTS": slots}
    outputs = [buffers[name] for name in OUTPUTS]

    def launch(batch: DecodeBatch, tokens_per_row: int) -> None:
        rows = config.rows_per_program
        programs = max(ceil_div(batch.requests, rows), ceil_div(batch.padded_tokens, rows * slots))
        if not programs:
            return
        kernel[(programs,)](
            batch.query_start_loc,
            batch.seq_lens,
            batch.block_table,
            batch.block_table.stride(0),
            *outputs,
            batch.requests,
            batch.padded_tokens,
            tokens_per_row,
            **constants,
            num_warps=config.num_warps,
        )

    return launch
