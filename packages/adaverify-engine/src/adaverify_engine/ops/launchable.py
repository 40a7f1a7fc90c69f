"""What the launches share: whether a kernel can run where its tensors are, and block sizes."""

from __future__ import annotations

from typing import Any

import torch

from adaverify_contracts import CapabilityError, LayoutError


def require_launchable(kernel: Any, device: torch.device) -> None:
    """Refuse a compiled kernel on a CPU.

    Raises:
        CapabilityError: ``kernel`` was compiled, or would be, and ``device`` is a CPU.
    """
    if device.type == "cpu" and type(kernel).__name__ != "InterpretedFunction":
        raise CapabilityError(
            f"the Triton kernel {kernel.__name__} cannot run on a CPU",
            arrived=str(device),
            allowed="a CUDA or ROCm device, or Triton's interpreter",
            remedy="use backend='torch' on a CPU",
        )


def require_backend(backend: str) -> None:
    """Refuse a backend that is neither ``torch`` nor ``triton``.

    Raises:
        LayoutError: another word.
    """
    if backend not in ("torch", "triton"):
        raise LayoutError(
            "the backend of an operation is unknown",
            arrived=backend,
            allowed="torch or triton",
            remedy="choose torch on a CPU, triton on an accelerator",
        )


def block_of(size: int, lowest: int = 16) -> int:
    """Return the smallest power of two that holds ``size`` values, at least ``lowest``."""
    return max(lowest, 1 << max(size - 1, 0).bit_length())
