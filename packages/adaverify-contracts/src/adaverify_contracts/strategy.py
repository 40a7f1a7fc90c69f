"""Decode strategies: how query tokens become attention-kernel rows on one kind of hardware."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from adaverify_contracts import _check
from adaverify_contracts.batch import DecodeBatch, DecodeRows
from adaverify_contracts.capability import Capability, Requirements
from adaverify_contracts.enums import GraphSupport
from adaverify_contracts.limits import Limits

if TYPE_CHECKING:
    import torch


@runtime_checkable
class DecodeRowBuilder(Protocol):
    """Static buffers of one strategy, made once by ``allocate``; ``build`` only launches."""

    @property
    def strategy(self) -> str:
        """Name of the strategy that owns these buffers."""
        ...

    @property
    def buffers(self) -> Mapping[str, torch.Tensor]:
        """Every static tensor by name. Addresses never change; graphs and the conformance kit rely on it."""
        ...

    def build(self, batch: DecodeBatch) -> DecodeRows:
        """Write this step's rows into the static buffers and return views of them.

        May be captured in a graph and replayed with other device lengths of the same padded shape. Never
        allocates device memory, for a shape's first build neither, reads a device value, synchronises, reads
        host lengths or writes to the batch; a strategy for uniform batches reads ``batch.uniform_query_len``
        only.

        Raises:
            LayoutError: the batch does not fit the limits the buffers were made for.
        """
        ...


class StrategyFactory(Protocol):
    """Makes the buffers of a strategy; the one place that may allocate and touch the host."""

    def __call__(self, limits: Limits, device: torch.device, capability: Capability) -> DecodeRowBuilder:
        """Return a builder for ``limits`` on ``device``, with buffers that no other builder writes to.

        Raises:
            LimitsError: the strategy cannot serve these limits; the message lists what it can.
        """
        ...


class PagedLogits(Protocol):
    """Scores of an indexer over a paged FP8 cache, for the rows of one kind of hardware's strategies."""

    def __call__(
        self,
        query: torch.Tensor,
        weights: torch.Tensor,
        pool: torch.Tensor,
        rows: DecodeRows,
        width: int,
    ) -> torch.Tensor:
        """Return masked scores float32 [M x N, width] by slot; -inf from each slot's length on.

        Launch-only: the result is allocated, under capture from the graph's pool.

        Args:
            query: float8_e4m3fn [T, H, D], by query token, dense.
            weights: float32 [T, H], by query token, dense; a positive query scale is folded in.
            pool: uint8 [pages, P, 1, D + 4], each page P rows of D codes, then P float32 scales.
            rows: of a strategy that offers these scores.
            width: columns; at least every row length.

        Raises:
            LayoutError: tensors do not fit the kernel, or the rows carry no schedule that it needs.
            GraphError: the call would compile inside a capture.
        """
        ...


class PagedLogitsFactory(Protocol):
    """Makes the scores of one model's sizes; compiles what later calls need."""

    def __call__(self, heads: int, head_dim: int, page_size: int, device: torch.device) -> PagedLogits:
        """Return scores of ``heads`` x ``head_dim`` over pages of ``page_size`` entries.

        Raises:
            CapabilityError: the kernel library is not there.
            LayoutError: sizes that the kernel does not take.
        """
        ...


@dataclass(frozen=True, slots=True)
class DecodeStrategyDescriptor:
    """A decode strategy as a plugin registers it.

    Attributes:
        name: unique name users type, for instance ``reference``.
        requirements: what the device must offer.
        graph_support: how much decode traffic its ``build`` survives in a captured graph.
        device_lengths: True when the strategy reads ragged query lengths from the device; adaptive
            verification needs it. False for strategies that serve uniform batches only.
        priority: larger is preferred among the strategies that fit, and of equals the name that sorts first;
            the embedded default is 0.
        evidence: ``executed``, ``emulated`` or ``compiled``: how far the author proved it on its hardware.
        allocate: the factory.
        supports: optional question about limits: returns all reasons why these limits cannot be served.
        logits: optional factory of an indexer's scores over a paged FP8 cache that read this strategy's rows.
    """

    name: str
    requirements: Requirements
    graph_support: GraphSupport
    device_lengths: bool
    priority: int
    evidence: str
    allocate: StrategyFactory = field(repr=False)
    supports: Callable[[Limits], tuple[str, ...]] | None = field(default=None, repr=False)
    logits: PagedLogitsFactory | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check.name("DecodeStrategyDescriptor", self.name)
        _check.instance("DecodeStrategyDescriptor", "requirements", self.requirements, Requirements)
        _check.instance("DecodeStrategyDescriptor", "graph_support", self.graph_support, GraphSupport)
        _check.instance("DecodeStrategyDescriptor", "device_lengths", self.device_lengths, bool)
        _check.instance("DecodeStrategyDescriptor", "priority", self.priority, int)
        _check.one_of(
            "DecodeStrategyDescriptor", "evidence", self.evidence, ("executed", "emulated", "compiled")
        )
        _check.callable_field("DecodeStrategyDescriptor", "allocate", self.allocate)
        if self.supports is not None:
            _check.callable_field("DecodeStrategyDescriptor", "supports", self.supports)
        if self.logits is not None:
            _check.callable_field("DecodeStrategyDescriptor", "logits", self.logits)
