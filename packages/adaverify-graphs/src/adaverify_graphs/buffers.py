"""Named static buffers: a graph is tied to where they were when it was captured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from adaverify_contracts import GraphError

if TYPE_CHECKING:
    import torch

    Place = tuple[int, torch.Size, tuple[int, ...]]


def _place(tensor: torch.Tensor) -> Place:
    # Compared before every replay, so it holds no more than it must: another dtype or device cannot come
    # without another address.
    return tensor.data_ptr(), tensor.shape, tensor.stride()


class BufferSet:
    """Static tensors by name, each with a generation that rises when it is moved or resized.

    Changes made here raise the generation at once; a tensor that was moved behind the set's back
    (``resize_``, ``set_``) is noticed whenever a generation is read. Holding the tensors keeps their
    memory alive for the graphs.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor] | None = None) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        self._places: dict[str, Place] = {}
        self._generations: dict[str, int] = {}
        self._epoch = 0
        for name, tensor in (tensors or {}).items():
            self.add(name, tensor)

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Register a new buffer at generation 0.

        Raises:
            GraphError: the name is taken; ``replace`` is the way to change a buffer.
        """
        if name in self._tensors:
            raise GraphError(
                f"buffer {name!r} exists already",
                arrived=name,
                allowed="a new name",
                remedy="call replace, which invalidates the graphs that read it",
            )
        self._tensors[name], self._places[name] = tensor, _place(tensor)
        self._generations[name] = 0

    def replace(self, name: str, tensor: torch.Tensor) -> None:
        """Put another tensor under a name; graphs captured before refuse to replay."""
        self._require(name)
        self._tensors[name], self._places[name] = tensor, _place(tensor)
        self._bump(name)

    def resize(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Allocate a buffer of another shape, keep what both shapes share, zero the rest; return it.

        Raises:
            GraphError: the name is unknown or the number of dimensions differs.
        """
        old = self[name]
        if len(shape) != old.dim():
            raise GraphError(
                f"buffer {name!r} cannot change its number of dimensions",
                arrived=shape,
                allowed=f"{old.dim()} dimensions",
                remedy="replace the buffer instead",
            )
        new = old.new_zeros(shape)
        common = tuple(slice(0, min(a, b)) for a, b in zip(old.shape, shape, strict=True))
        new[common] = old[common]
        self.replace(name, new)
        return new

    def move(self, name: str, device: torch.device | str) -> torch.Tensor:
        """Copy a buffer to a device, its own included, and return the copy."""
        new = self[name].to(device, copy=True)
        self.replace(name, new)
        return new

    def generation(self, name: str) -> int:
        """Return how often a buffer was moved or resized."""
        self._require(name)
        self._notice_moves()
        return self._generations[name]

    @property
    def epoch(self) -> int:
        """Number of changes to any buffer so far; equal epochs mean that nothing moved in between."""
        self._notice_moves()
        return self._epoch

    def generations(self) -> dict[str, int]:
        """Return the generation of every buffer now, to compare later with ``changed``."""
        self._notice_moves()
        return dict(self._generations)

    def changed(self, since: Mapping[str, int]) -> tuple[str, ...]:
        """Return the buffers of ``since`` whose generation differs now; buffers added later do not count."""
        self._notice_moves()
        return tuple(name for name, was in since.items() if self._generations.get(name) != was)

    def _notice_moves(self) -> None:
        for name, tensor in self._tensors.items():
            place = _place(tensor)
            if place != self._places[name]:
                self._places[name] = place
                self._bump(name)

    def _bump(self, name: str) -> None:
        self._generations[name] += 1
        self._epoch += 1

    def _require(self, name: str) -> None:
        if name not in self._tensors:
            raise GraphError(
                f"no buffer is named {name!r}",
                arrived=name,
                allowed=", ".join(sorted(self._tensors)) or "none: no buffer was added",
                remedy="add the buffer first",
            )

    def __getitem__(self, name: str) -> torch.Tensor:
        self._require(name)
        return self._tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
