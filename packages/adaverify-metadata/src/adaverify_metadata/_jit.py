"""Turn marked functions into Triton kernels at first use, so that importing a kernel module does nothing.

``triton.jit`` reads the environment when it decorates (it chooses between compiler and interpreter). House
rule 18 allows no such read at import, so kernel modules only *mark* their functions and ``load`` decorates
them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from inspect import isfunction
from threading import Lock
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from adaverify_contracts import CapabilityError

if TYPE_CHECKING:
    import torch

_Marked = TypeVar("_Marked", bound=Callable[..., Any])
_OPTIONS = "__adaverify_jit_options__"
_jitted: dict[FunctionType, Any] = {}
_lock = Lock()


def device(**options: Any) -> Callable[[_Marked], _Marked]:
    """Mark a function as device code; ``options`` go to ``triton.jit`` unchanged."""

    def mark(function: _Marked) -> _Marked:
        setattr(function, _OPTIONS, options)
        return function

    return mark


def load(module_name: str) -> ModuleType:
    """Import a kernel module and return it with every marked function decorated, helpers included.

    Raises:
        ImportError: Triton is not installed.
    """
    module = import_module(module_name)
    with _lock:
        _decorate(module)
    return module


def kernel_for(module_name: str, name: str, device: torch.device) -> Any:
    """Return one kernel, ready to launch on tensors of ``device``.

    Raises:
        ImportError: Triton is not installed.
        CapabilityError: compiled kernels were asked to run on a CPU.
    """
    kernel = getattr(load(module_name), name)
    if device.type == "cpu" and type(kernel).__name__ != "InterpretedFunction":
        raise CapabilityError(
            f"the Triton kernel {name} cannot run on a CPU",
            arrived=str(device),
            allowed="a CUDA or ROCm device, or Triton's interpreter",
            remedy="use backend='torch' on a CPU",
        )
    return kernel


def _decorate(module: ModuleType) -> None:
    from triton import jit

    for name, value in list(vars(module).items()):
        if not isfunction(value) or not hasattr(value, _OPTIONS):
            continue
        if value not in _jitted:
            _jitted[value] = jit(**getattr(value, _OPTIONS))(value)
            # A helper finds its own helpers through the globals of the module that defines it.
            _decorate(sys.modules[value.__module__])
        setattr(module, name, _jitted[value])
