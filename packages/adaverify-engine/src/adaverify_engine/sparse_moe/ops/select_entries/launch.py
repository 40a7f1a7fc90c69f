"""Launch of the selection: one program a slot."""

from __future__ import annotations

import torch

from adaverify_contracts import LayoutError
from adaverify_engine.ops.launchable import block_of, require_backend, require_launchable
from adaverify_engine.sparse_moe.ops.select_entries.reference import select_entries_reference

WIDEST = 16384
"""Columns one program holds in registers, 32 a thread; wider scores go to torch's top-k."""
# 16 a thread up to 8192 columns.
COLUMNS_A_WARP, MOST_WARPS = 512, 16


def select_entries(
    scores: torch.Tensor, lens: torch.Tensor, selected: int, *, backend: str = "triton"
) -> torch.Tensor:
    """Return [slots, selected], the columns of each slot's largest scores; int32 or, from torch, int64.

    A row whose length is at most ``selected`` may hold anything: all of its entries are taken without a list.
    With Triton, columns rise and of equal scores the lower ones are taken; otherwise neither is promised.

    Args:
        scores: float32 [slots, width], dense in the last dimension, row stride free; -inf past the lengths.
        lens: int32 [slots] or [rows, N], dense.
        selected: at most ``width``.
        backend: ``torch`` or ``triton``; both only launch.

    Raises:
        LayoutError: shapes do not fit, or an unknown backend.
        CapabilityError: Triton on a CPU without its interpreter.
    """
    require_backend(backend)
    slots, width = scores.shape
    if not 1 <= selected <= width or lens.numel() != slots or (width > 1 and scores.stride(1) != 1):
        raise LayoutError(
            "entries cannot be selected from these scores",
            arrived={"scores": tuple(scores.shape), "lens": tuple(lens.shape), "selected": selected},
            allowed="scores [slots, width] dense in width, one length a slot, 1 <= selected <= width",
            remedy="pass the row lengths of the rows that were scored",
        )
    if backend == "torch" or width > WIDEST:
        return select_entries_reference(scores, selected)
    from adaverify_engine.sparse_moe.ops.select_entries.kernel import select_entries_kernel

    require_launchable(select_entries_kernel, scores.device)
    picked = torch.empty((slots, selected), dtype=torch.int32, device=scores.device)
    if slots:
        block = block_of(width)
        select_entries_kernel[(slots,)](
            scores,
            lens,
            picked,
            width,
            scores.stride(0),
            SELECTED=selected,
            BLOCK=block,
            num_warps=min(MOST_WARPS, max(4, block // COLUMNS_A_WARP)),
        )
    return picked
