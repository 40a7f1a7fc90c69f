"""Launch of the tail-heavy schedule kernel."""

from __future__ import annotations

import torch

from adaverify_metadata._jit import kernel_for
from adaverify_metadata.ops.launch_config import next_power_of_two
from adaverify_metadata.ops.schedule_launch import ScheduleLaunch, schedule_warps


def prepare_tail_heavy(max_rows: int, schedule: torch.Tensor, split: int, atoms: int) -> ScheduleLaunch:
    """Return a launch that writes the tail-heavy schedule of lens int32 [B, N] into ``schedule``."""
    kernel = kernel_for("adaverify_metadata.ops.tail_heavy.kernel", "tail_heavy_kernel", schedule.device)
    slots, block = schedule.shape[0] - 1, next_power_of_two(max_rows)

    def launch(
        lens: torch.Tensor, request_indices: torch.Tensor | None, row_lens: torch.Tensor | None
    ) -> None:
        del request_indices
        kernel[(slots + 1,)](
            lens,
            lens if row_lens is None else row_lens,
            schedule,
            lens.shape[0],
            lens.shape[1],
            slots,
            ROWS=block,
            SPLIT=split,
            ATOMS=atoms,
            CUT=row_lens is not None,
            num_warps=schedule_warps(block),
        )

    return launch
