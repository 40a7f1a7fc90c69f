"""What the launches of the schedule kernels share: one program a slot, all rows in registers."""

from __future__ import annotations

from collections.abc import Callable

import torch

ScheduleLaunch = Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor | None], None]
"""``launch(lens, request_indices, row_lens)`` enqueues one kernel on the current stream; capturable."""

MAX_SCHEDULE_ROWS = 16384
"""Rows one program holds: 32 a thread at 16 warps. 2048 requests of 8 tokens; nothing larger has been run."""


def schedule_warps(block: int) -> int:
    """Return the warps of a program over ``block`` rows: 4, more once a thread would hold over 16 rows.

    At most 16: where a warp has 64 threads that is already the limit of 1024 threads a program.
    """
    return min(16, max(4, block // (16 * 32)))
