"""Turn a plain function into a Triton kernel at first use: Triton reads the environment when it decorates."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from adaverify_contracts import CapabilityError


@cache
def decorated(function: Callable[..., Any], unspecialized: tuple[str, ...] = ()) -> Any:
    """Return the kernel of a function, decorated once.

    Args:
        function: device code.
        unspecialized: integers whose values must not compile anew.

    Raises:
        ImportError: Triton is not installed.
    """
    from triton import jit

    return jit(do_not_specialize=list(unspecialized))(function)


def require_device(kernel: Any, device: torch.device) -> None:
    """Refuse a compiled kernel on a CPU; the interpreter runs there.

    Raises:
        CapabilityError: naming the device and what to do.
    """
    if device.type == "cpu" and type(kernel).__name__ != "InterpretedFunction":
        raise CapabilityError(
            "a compiled Triton kernel cannot run on a CPU",
            arrived=str(device),
            allowed="a CUDA device, or Triton's interpreter",
            remedy="use backend='torch' on a CPU",
        )
