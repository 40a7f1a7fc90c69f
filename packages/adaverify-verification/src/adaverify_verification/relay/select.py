"""Which relay serves which device."""

from __future__ import annotations

import torch

from adaverify_contracts import Limits
from adaverify_verification.relay.base import DEFAULT_DEPTH, Relay
from adaverify_verification.relay.cpu import CpuRelay
from adaverify_verification.relay.cuda import CudaRelay


def make_relay(limits: Limits, device: torch.device | str, depth: int = DEFAULT_DEPTH) -> Relay:
    """Return a ``CpuRelay`` for a CPU and a ``CudaRelay`` for anything else.

    Raises:
        CapabilityError: the device is neither a CPU nor an available accelerator with streams.
    """
    if torch.device(device).type == "cpu":
        return CpuRelay(limits, depth)
    return CudaRelay(limits, device, depth)
