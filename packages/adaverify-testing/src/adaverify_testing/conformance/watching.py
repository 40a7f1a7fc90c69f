"""Watching a build on a CPU: what it reads on the host, what storage it makes, what a graph would record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

# Functions whose result is a host value, or whose output's shape depends on device values.
_READING_FUNCTIONS = (
    "item",
    "tolist",
    "numpy",
    "__array__",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "__contains__",
    "is_nonzero",
)
_READING_OPS = (
    "_local_scalar_dense",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
    "_unique2",
)


class HostRead(Exception):
    """A build read a device value on the host."""


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


class _RefuseFunctions(TorchFunctionMode):
    """Raises for tensor methods that read memory without any operation."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _READING_FUNCTIONS:
            raise HostRead(f"Tensor.{name}")
        return func(*args, **(kwargs or {}))


class _RefuseOps(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises for operations that hand a device value to the host, wherever they are called from."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        indexed = name == "index" and any(
            isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8)
            for part in tree_flatten(args[1:])[0]
        )
        if name in _READING_OPS or indexed:
            raise HostRead(f"the operation {name}{' with a mask' * indexed}")
        return func(*args, **(kwargs or {}))


def refusing_host_reads(run: Callable[[], Any]) -> Any:
    """Return ``run()``; any read of a tensor's value by the host raises.

    Raises:
        HostRead: names the method or operation.
    """
    with _RefuseOps(), _RefuseFunctions():  # type: ignore[no-untyped-call]
        return run()


class _NewStorage(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers, without keeping alive, every storage that an operation made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: dict[int, tuple[StorageWeakRef, str]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = {_storage(t) for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_flatten(out)[0]:
            if isinstance(tensor, torch.Tensor) and _storage(tensor) not in given:
                storage = tensor.untyped_storage()
                reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self.made[_storage(tensor)] = (reference, func.overloadpacket.__name__)
        return out


def storage_kept_after(run: Callable[[], Any]) -> tuple[Any, tuple[str, ...]]:
    """Return what ``run`` returned and the operations whose new storage is still alive afterwards."""
    with _NewStorage() as watch:
        result = run()
    return result, tuple(name for reference, name in watch.made.values() if not reference.expired())


def shares_storage(tensor: torch.Tensor, others: Iterable[torch.Tensor]) -> bool:
    """Return whether ``tensor`` is a view of one of ``others``; tensors without elements always are."""
    return tensor.numel() == 0 or _storage(tensor) in {_storage(other) for other in others}


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A CUDA graph in miniature: records operations, then repeats them without any of the host's code.

    Python values that the host read while recording stay what they were, as in a graph. Kernels that bypass
    torch (Triton's interpreter) leave no operation behind.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._steps: list[tuple[Any, Any, Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        out = func(*args, **kwargs)
        self._steps.append((func, (args, kwargs), out))
        return out

    def replay(self) -> None:
        """Repeat every recorded operation on what its inputs hold now."""
        now: dict[int, torch.Tensor] = {}

        def current(value: Any) -> Any:
            return now.get(id(value), value) if isinstance(value, torch.Tensor) else value

        for func, given, out in self._steps:
            args, kwargs = tree_map(current, given)
            fresh = tree_flatten(func(*args, **kwargs))[0]
            for old, new in zip(tree_flatten(out)[0], fresh, strict=True):
                if isinstance(old, torch.Tensor):
                    now[id(old)] = new
