"""Launch of the paired kernel."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from adaverify_contracts import DecodeBatch, Limits, ceil_div
from adaverify_metadata._jit import kernel_for
from adaverify_metadata.ops.launch_config import LaunchConfig
from adaverify_metadata.ops.paired.reference import paired_row_count
from adaverify_metadata.ops.row_launch import OUTPUTS, RowLaunch, row_constants


def prepare_paired(limits: Limits, config: LaunchConfig, buffers: Mapping[str, torch.Tensor]) -> RowLaunch:
    """Return a launch that builds rows of two query tokens into ``buffers``."""
    kernel = kernel_for("adaverify_metadata.ops.paired.kernel", "paired_kernel", buffers["row_lens"].device)
    constants = row_constants(limits, config, buffers)
    outputs = [buffers[name] for name in OUTPUTS]

    def launch(batch: DecodeBatch, tokens_per_row: int) -> None:
        rows = paired_row_count(batch.padded_tokens, batch.requests)
        # Without any request an odd token count has half a row more than rows.
        covered = max(rows, ceil_div(batch.padded_tokens, tokens_per_row))
        if not covered:
            return
        kernel[(ceil_div(covered, config.rows_per_program),)](
            batch.query_start_loc,
            batch.seq_lens,
            batch.block_table,
            batch.block_table.stride(0),
            *outputs,
            batch.requests,
            batch.padded_tokens,
            rows,
            **constants,
            num_warps=config.num_warps,
        )

    return launch
