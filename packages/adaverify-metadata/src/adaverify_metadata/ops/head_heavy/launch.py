"""Launch of the head-heavy schedule kernel."""

from __future__ import annotations

import torch

from adaverify_metadata._jit import kernel_for
from adaverify_metadata.ops.launch_config import next_power_of_two
from adaverify_metadata.ops.schedule_launch import ScheduleLaunch, schedule_warps


def prepare_head_heavy(max_rows: int, schedule: torch.Tensor, split: int, row_group: int) -> ScheduleLaunch:
    """Return a launch that writes the head-heavy schedule into ``schedule``."""
    kernel = kernel_for("adaverify_metadata.ops.head_heavy.kernel", "head_heavy_kernel", schedule.device)
    slots, block = schedule.shape[0] - 1, next_power_of_two(max_rows)

    def launch(
        lens: torch.Tensor, request_indices: torch.Tensor | None, row_lens: torch.Tensor | None
    ) -> None:
        del row_lens
        kernel[(slots + 1,)](
            lens,
            lens if request_indices is None else request_indices,
            schedule,
            lens.shape[0],
            lens.shape[1],
            slots,
            ROWS=block,
            SPLIT=split,
            ROW_GROUP=row_group,
            RUNS=request_indices is not None,
            num_warps=schedule_warps(block),
        )

    return launch
