"""Launch of the mask kernel, and the choice between it and the reference."""

from __future__ import annotations

import torch

from adaverify_contracts import LayoutError, ceil_div
from adaverify_metadata._jit import kernel_for
from adaverify_metadata.ops.mask_logits.reference import mask_logits_reference

# One program masks this many columns: 8 stores of 16 bytes a thread at 4 warps. A program whose columns all
# lie below the length ends after one load.
COLUMNS = 4096
WARPS = 4


def mask_logits(logits: torch.Tensor, lens: torch.Tensor, *, backend: str = "triton") -> torch.Tensor:
    """Write -inf where ``column >= lens[slot]``, in place, and return the logits.

    Launch-only with the Triton backend: one kernel on the current stream, capturable after one call outside
    a capture.

    Args:
        logits: float32 or bfloat16 [S, C], dense in the last dimension, row stride free.
        lens: int32 [S] or [M, N] with M x N = S, contiguous, same device.
        backend: ``triton`` or ``torch``.

    Raises:
        LayoutError: shapes, dtypes, strides or devices do not fit.
        CapabilityError: the Triton backend on a CPU outside the interpreter.
    """
    fits = (
        logits.dim() == 2
        and logits.dtype in (torch.float32, torch.bfloat16)
        and lens.dtype == torch.int32
        and lens.numel() == logits.shape[0]
        and lens.is_contiguous()
        and (logits.shape[1] < 2 or logits.stride(1) == 1)
        and logits.device == lens.device
    )
    if not fits:
        raise LayoutError(
            "these logits cannot be masked with these lengths",
            arrived={
                "logits": (
                    tuple(logits.shape),
                    tuple(logits.stride()),
                    str(logits.dtype),
                    str(logits.device),
                ),
                "lens": (tuple(lens.shape), str(lens.dtype), str(lens.device)),
            },
            allowed="logits float32 or bfloat16 [S, C] dense in C, lens contiguous int32 [S], one device",
            remedy="pass DecodeRows.row_lens of the rows that made the logits",
        )
    slots, width = logits.shape
    if not slots or not width:
        return logits
    if backend == "torch":
        return mask_logits_reference(logits, lens)
    kernel = kernel_for("adaverify_metadata.ops.mask_logits.kernel", "mask_logits_kernel", logits.device)
    grid = (slots, ceil_div(width, COLUMNS))
    kernel[grid](logits, lens, logits.stride(0), width, COLUMNS=COLUMNS, num_warps=WARPS)
    return logits
