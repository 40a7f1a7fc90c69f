"""Launch of the flatten kernel; the varlen strategy uses it too."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from adaverify_contracts import DecodeBatch, Limits, ceil_div
from adaverify_metadata._jit import kernel_for
from adaverify_metadata.ops.launch_config import LaunchConfig
from adaverify_metadata.ops.row_launch import OUTPUTS, RowLaunch, row_constants


def flatten_constants(
    limits: Limits, config: LaunchConfig, buffers: Mapping[str, torch.Tensor], *, whole_request: bool = False
) -> dict[str, int]:
    """Return the compile-time constants of the flatten kernel; arguments as for ``prepare_flatten``."""
    constants = row_constants(limits, config, buffers)
    # The kernel searches no request: it has a place for each query token that one can have.
    del constants["REQUESTS"]
    return constants | {"QUERY": limits.max_query_len, "WHOLE_REQUEST": whole_request}


def prepare_flatten(
    limits: Limits,
    config: LaunchConfig,
    buffers: Mapping[str, torch.Tensor],
    *,
    whole_request: bool = False,
) -> RowLaunch:
    """Return a launch that builds one row a query token into ``buffers``.

    With ``whole_request`` every row's table reaches the end of its request (varlen).
    """
    kernel = kernel_for("adaverify_metadata.ops.flatten.kernel", "flatten_kernel", buffers["row_lens"].device)
    constants = flatten_constants(limits, config, buffers, whole_request=whole_request)
    outputs = [buffers[name] for name in OUTPUTS]

    def launch(batch: DecodeBatch, tokens_per_row: int) -> None:
        del tokens_per_row
        tokens = batch.padded_tokens
        if not tokens:
            return
        places = max(batch.requests * limits.max_query_len, tokens)
        kernel[(ceil_div(places, config.rows_per_program),)](
            batch.query_start_loc,
            batch.seq_lens,
            batch.block_table,
            batch.block_table.stride(0),
            *outputs,
            batch.requests,
            tokens,
            **constants,
            num_warps=config.num_warps,
        )

    return launch
