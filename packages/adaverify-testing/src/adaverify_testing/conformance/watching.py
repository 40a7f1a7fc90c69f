"""Watching a build on a CPU: what it reads on the host, what storage it makes, what a graph would record."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
import torch.utils.dlpack
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

# Functions that hand memory to the host, or wait for the device to do so. Operations are judged by tags.
_READING_FUNCTIONS = (
    "item",
    "tolist",
    "numpy",
    "cpu",
    "__array__",
    "__dlpack__",
    "__repr__",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "__contains__",
    "is_nonzero",
)
# Their lists of tensors are read element by element, and in C++, where no operation shows.
_COPYING_FUNCTIONS = ("tensor", "as_tensor", "asarray")
_READING_TAGS = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
_MASKABLE = ("index", "index_put", "index_put_", "_index_put_impl_")


class HostRead(Exception):
    """A build read a device value on the host."""


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def _interpreted() -> bool:
    """Return whether Triton's interpreter asks: it is the device, and may look at its own memory."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("triton."):
            return True
        frame = frame.f_back
    return False


def _read_by_function(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return in words how a function reads tensors, None when it does not."""
    if name in _READING_FUNCTIONS:
        return f"Tensor.{name}"
    given = args[0] if args else kwargs.get("data", kwargs.get("obj"))
    if name in _COPYING_FUNCTIONS and not isinstance(given, torch.Tensor) and _tensors(given):
        return f"torch.{name} of a list of tensors"
    if name == "tensor_split" and len(_tensors((args, kwargs))) > 1:
        return "tensor_split at places that a tensor holds"
    return None


def _read_by_operation(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return in words how an operation reads device values, None when it does not."""
    name = func.overloadpacket.__name__
    if name == "repeat_interleave":
        # With output_size nothing depends on the repeats but values.
        return None if kwargs.get("output_size") is not None else f"the operation {name} without output_size"
    if name in _MASKABLE:
        masked = any(part.dtype in (torch.bool, torch.uint8) for part in _tensors(args[1]))
        # One value behind a mask is masked_fill, which waits for nothing.
        filling = name != "index" and args[2].numel() == 1
        return f"the operation {name} with a mask" if masked and not filling else None
    if name == "is_nonzero" or _READING_TAGS & set(func.tags):
        words = ", whose output's shape depends on values" * (torch.Tag.dynamic_output_shape in func.tags)
        return f"the operation {name}{words}"
    return None


class _RefuseFunctions(TorchFunctionMode):
    """Raises for tensor methods that read memory without any operation."""

    def __init__(self, reads: list[str]) -> None:
        super().__init__()
        self._reads = reads

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        read = _read_by_function(getattr(func, "__name__", ""), args, kwargs or {})
        if read and not _interpreted():
            self._reads.append(read)
            raise HostRead(read)
        return func(*args, **(kwargs or {}))


class _RefuseOps(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises for operations that hand a device value to the host, wherever they are called from."""

    def __init__(self, reads: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._reads = reads

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        read = _read_by_operation(func, args, kwargs or {})
        if read and not _interpreted():
            self._reads.append(read)
            raise HostRead(read)
        return func(*args, **(kwargs or {}))


@contextmanager
def _refusing_dlpack(reads: list[str]) -> Iterator[None]:
    """Refuse the one exporter of tensors that no mode of torch sees."""

    def refuse(*_: Any, **__: Any) -> Any:
        reads.append("to_dlpack")
        raise HostRead("to_dlpack")

    name = "to_dlpack"
    kept = [(owner, getattr(owner, name)) for owner in (torch, torch.utils.dlpack) if hasattr(owner, name)]
    try:
        for owner, _ in kept:
            setattr(owner, name, refuse)
        yield
    finally:
        for owner, function in kept:
            setattr(owner, name, function)


def refusing_host_reads(run: Callable[[], Any]) -> Any:
    """Return ``run()``; any read of a tensor's value by the host raises.

    Unseen: reads through an address (``data_ptr`` with ctypes), of a storage, and in another thread.

    Raises:
        HostRead: names the method or operation, also when the code under watch swallowed the error.
    """
    reads: list[str] = []
    with _refusing_dlpack(reads), _RefuseOps(reads), _RefuseFunctions(reads):
        result = run()
    if reads:
        raise HostRead(f"{reads[0]}, and what that raised was swallowed")
    return result


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
            if isinstance(tensor, torch.Tensor) and _storage(tensor) not in given and not _interpreted():
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
