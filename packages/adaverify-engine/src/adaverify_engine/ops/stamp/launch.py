"""Launch of the clock's kernel: CUDA alone has the register that it reads."""

from __future__ import annotations

import torch

from adaverify_contracts import CapabilityError
from adaverify_engine.ops.stamp.reference import stamp_reference


def require_clock(device: torch.device) -> None:
    """Refuse a device whose clock no kernel here reads.

    Raises:
        CapabilityError: it is neither a CPU nor a CUDA device.
    """
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and torch.version.hip is not None):
        raise CapabilityError(
            "the device's clock cannot be read inside a step",
            arrived=str(device),
            allowed="a CPU or a CUDA device",
            remedy="leave out what times the inside of steps, or run it on CUDA",
        )


def stamp(times: torch.Tensor, counts: torch.Tensor, place: int) -> None:
    """Write the time at which the device comes here, in nanoseconds, and count it.

    One launch of one warp, capturable after one call outside a capture. A CPU writes the host's clock.

    Args:
        times: int64 [places, capacity], dense; a place that was stamped more often starts again at the left.
        counts: int64 [places], how often each was stamped.
        place: row of ``times``.

    Raises:
        CapabilityError: see ``require_clock``.
    """
    require_clock(times.device)
    if times.device.type == "cpu":
        stamp_reference(times, counts, place)
        return
    from adaverify_engine.ops.stamp.kernel import stamp_kernel

    stamp_kernel[(1,)](times, counts, place, CAPACITY=times.shape[1], num_warps=1)
