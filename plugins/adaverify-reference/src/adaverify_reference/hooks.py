"""The strategies ``reference`` and ``uniform``: torch operations only, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adaverify_contracts import (
    Capability,
    DecodeRowBuilder,
    DecodeStrategyDescriptor,
    GraphSupport,
    Limits,
    Requirements,
    hookimpl,
)

if TYPE_CHECKING:
    import torch


def _reference(limits: Limits, device: torch.device, capability: Capability) -> DecodeRowBuilder:
    from adaverify_metadata import FlattenRowBuilder

    del capability
    return FlattenRowBuilder("reference", limits, device, backend="torch")


def _uniform(limits: Limits, device: torch.device, capability: Capability) -> DecodeRowBuilder:
    from adaverify_metadata import UniformRowBuilder

    del capability
    return UniformRowBuilder("uniform", limits, device, backend="torch")


@hookimpl
def adaverify_register_decode_strategies() -> Sequence[DecodeStrategyDescriptor]:
    """Return ``reference`` (one row a query token, any lengths) and ``uniform`` (one row a request).

    Both consist of torch operations whose shapes follow from the padded batch alone and that read no device
    value, so a CUDA graph records them; their temporaries come from the graph's own pool. ``reference`` reads
    every length from the device and so survives a replay with other lengths. ``uniform`` has the common
    query length in its shapes: one captured size serves one length.
    """
    return (
        DecodeStrategyDescriptor(
            name="reference",
            requirements=Requirements(),
            graph_support=GraphSupport.VARLEN_DECODE,
            device_lengths=True,
            priority=0,
            evidence="executed",
            allocate=_reference,
        ),
        DecodeStrategyDescriptor(
            name="uniform",
            requirements=Requirements(),
            graph_support=GraphSupport.UNIFORM_BATCH,
            device_lengths=False,
            priority=0,
            evidence="executed",
            allocate=_uniform,
        ),
    )
