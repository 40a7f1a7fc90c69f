"""Launch of the paired-units schedule kernel."""

from __future__ import annotations

import torch

from adaverify_metadata._jit import kernel_for
from adaverify_metadata.ops.launch_config import next_power_of_two
from adaverify_metadata.ops.schedule_launch import ScheduleLaunch, schedule_warps


def prepare_paired_units(max_rows: int, schedule: torch.Tensor, split: int) -> ScheduleLaunch:
    """Return a launch that writes the paired-units schedule of lens int32 [M, 1] into ``schedule``."""
    kernel = kernel_for("adaverify_metadata.ops.paired_units.kernel", "paired_units_kernel", schedule.device)
    slots, block = schedule.shape[0] - 1, next_power_of_two(max_rows)

    def launch(
        lens: torch.Tensor, request_indices: torch.Tensor | None, row_lens: torch.Tensor | None
    ) -> None:
        del row_lens
        kernel[(slots + 1,)](
            lens,
            request_indices,
            schedule,
            lens.shape[0],
            slots,
            ROWS=block,
            SPLIT=split,
            num_warps=schedule_warps(block),
        )

    return launch
