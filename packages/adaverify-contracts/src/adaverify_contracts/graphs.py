"""Graph keys and backends: capture once, replay for every batch the key dominates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from adaverify_contracts import _check
from adaverify_contracts.capability import Requirements
from adaverify_contracts.errors import GraphError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, order=True)
class GraphKey:
    """Shape of a captured decode step; also the shape of a batch that looks for one.

    Ordered by tokens first, so the smallest dominating key is the cheapest to run.
    """

    tokens: int
    requests: int
    max_query_len: int
    table_width: int

    def __post_init__(self) -> None:
        for name in ("tokens", "requests", "max_query_len", "table_width"):
            _check.at_least("GraphKey", name, getattr(self, name), 0, GraphError)

    def dominates(self, batch: GraphKey) -> bool:
        """Return whether a graph of this shape can run ``batch``: at least as large, equal in width."""
        return (
            self.tokens >= batch.tokens
            and self.requests >= batch.requests
            and self.max_query_len >= batch.max_query_len
            and self.table_width == batch.table_width
        )


@runtime_checkable
class CapturedGraph(Protocol):
    """One captured decode step."""

    def replay(self) -> Any:
        """Run the step on what the static buffers hold now; return what the captured function returned."""
        ...


@runtime_checkable
class GraphBackend(Protocol):
    """Captures and replays. ``eager`` keeps the function; ``cuda`` records a CUDA graph."""

    def estimate(self, run: Callable[[], Any]) -> int:
        """Return the bytes one capture of ``run`` is expected to add to the pool, 0 when unknown."""
        ...

    def capture(self, run: Callable[[], Any]) -> CapturedGraph:
        """Warm up and capture ``run``.

        Raises:
            CaptureError: with the cause; stream and allocator state are as before the call.
        """
        ...

    def pool_bytes(self) -> int:
        """Return the bytes held by all captures so far."""
        ...


@dataclass(frozen=True, slots=True)
class GraphBackendDescriptor:
    """A graph backend as a plugin registers it. ``factory(device)`` makes one backend for one device."""

    name: str
    requirements: Requirements
    captures: bool
    priority: int
    factory: Callable[[torch.device], GraphBackend] = field(repr=False)

    def __post_init__(self) -> None:
        _check.name("GraphBackendDescriptor", self.name)
        _check.instance("GraphBackendDescriptor", "requirements", self.requirements, Requirements)
        _check.instance("GraphBackendDescriptor", "captures", self.captures, bool)
        _check.instance("GraphBackendDescriptor", "priority", self.priority, int)
        _check.callable_field("GraphBackendDescriptor", "factory", self.factory)
