"""How the send kernel is launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adaverify_contracts import CapabilityError

if TYPE_CHECKING:
    import torch

# 256 x 7 values are two programs of 4 warps with 8 values a thread; the bus is the limit, not the launch.
BLOCK = 1024
NUM_WARPS = 4


def send(confidences: torch.Tensor, entry: torch.Tensor, ring: torch.Tensor) -> None:
    """Enqueue one launch that stores ``confidences``; as ``send_reference``. Allocates and reads nothing.

    Args:
        confidences: float32 [R, K] on the device, dense rows.
        entry: int32 [1] on the device.
        ring: float32 [entries, at least R, K], contiguous; pinned host memory, or on the device.

    Raises:
        CapabilityError: Triton is not installed.
    """
    try:
        from adaverify_verification.relay.send.kernel import send_kernel
    except ImportError as error:
        raise CapabilityError(
            "confidences of a captured step are sent by a Triton kernel",
            arrived=f"{type(error).__name__}: {error}",
            allowed="an installed Triton",
            remedy="install Triton, or publish outside graphs",
        ) from error
    rows, drafts = confidences.shape
    values = rows * drafts
    if not values:
        return
    send_kernel[(-(-values // BLOCK),)](
        confidences,
        entry,
        ring,
        rows,
        confidences.stride(0),
        ring.shape[1] * drafts,
        ring.shape[0] - 1,
        DRAFTS=drafts,
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
    )
