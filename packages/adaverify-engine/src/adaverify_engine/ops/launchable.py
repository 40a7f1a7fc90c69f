"""What the launches share: whether a kernel can run where its tensors are, and block sizes."""

from __future__ import annotations

from typing import Any

import torch

from adaverify_contracts import CapabilityError, LayoutError


def is_interpreted(kernel: Any) -> bool:
    """Return whether Triton interprets ``kernel``.

    Attention asks: the interpreter keeps bfloat16 as 16-bit integers and multiplies those, so factors are
    widened there.
    """
    return type(kernel).__name__ == "InterpretedFunction"


def require_heads(what: str, head_dim: int, heads: int, kv_heads: int, remedy: str) -> None:
    """Refuse heads that a paged attention kernel does not serve.

    Args:
        what: the attention, in words.
        head_dim: elements of one head.
        heads, kv_heads: query heads and KV heads.
        remedy: what to do about another head size.

    Raises:
        CapabilityError: the head size is no power of two from 16 to 256, or heads do not divide.
    """
    if head_dim < 16 or head_dim > 256 or head_dim & (head_dim - 1):
        raise CapabilityError(
            f"{what} does not serve this head size",
            arrived=head_dim,
            allowed="16, 32, 64, 128 or 256",
            remedy=remedy,
        )
    if kv_heads < 1 or heads < 1 or heads % kv_heads:
        raise CapabilityError(
            "query heads do not share KV heads evenly",
            arrived=(heads, kv_heads),
            allowed="heads a multiple of kv_heads",
            remedy="pass the model's own head counts",
        )


def require_launchable(kernel: Any, device: torch.device) -> None:
    """Refuse a compiled kernel on a CPU.

    Raises:
        CapabilityError: ``kernel`` was compiled, or would be, and ``device`` is a CPU.
    """
    if device.type == "cpu" and not is_interpreted(kernel):
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
