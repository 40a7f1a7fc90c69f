"""Launch of the row kernel."""

from __future__ import annotations

from typing import Any

import torch

from adaverify_vllm.jit import decorated, require_device

# Columns a program copies at once: 1024 of four bytes are two 16-byte accesses a thread of 4 warps.
COLUMNS = 1024
WARPS = 4
MAX_REQUESTS = 4096


def rows_kernel() -> Any:
    """Return the kernel."""
    from adaverify_vllm.rows.kernel import rows_kernel as function

    return decorated(function, ("table_stride", "row_stride", "requests"))


def write_rows(
    boundaries: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    most_requests: int,
) -> None:
    """Enqueue one launch that writes what ``write_rows_reference`` writes; allocates and reads nothing.

    Args:
        boundaries: int32 [R + 1]; seq_lens: int32 [R]; block_table: int32 [R, W], dense rows.
        outputs: int32 [T], [T, at least W] in dense rows, [T].
        most_requests: requests of the largest batch; one kernel is compiled for it.
    """
    lens, table, ones = outputs
    tokens, width = lens.shape[0], block_table.shape[1]
    if not tokens:
        return
    kernel = rows_kernel()
    require_device(kernel, lens.device)
    kernel[(tokens,)](
        boundaries,
        seq_lens,
        block_table,
        lens,
        table,
        ones,
        block_table.stride(0),
        table.stride(0),
        seq_lens.shape[0],
        REQUESTS=1 << max(0, most_requests - 1).bit_length(),
        WIDTH=width,
        COLUMNS=min(COLUMNS, 1 << max(0, width - 1).bit_length()),
        num_warps=WARPS,
    )
