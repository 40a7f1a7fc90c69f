"""The strategy ``flatten-rocm``, opt-in."""

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

    from adaverify_metadata import LaunchConfig

_NOT_COMPILED = "compiled for gfx942 and gfx950 only"
CHIPS = Requirements(
    device_types=("rocm",),
    architectures=("gfx942", "gfx950"),
    kernels=("triton",),
    refusals=(("gfx908", _NOT_COMPILED), ("gfx90a", _NOT_COMPILED)),
)


def launch_config() -> LaunchConfig:
    """Return the launch that the strategy uses, and that its test compiles."""
    from adaverify_metadata import LaunchConfig

    # A wavefront has 64 threads: two are the 128 threads that four warps are elsewhere.
    return LaunchConfig(num_warps=2)


def _flatten(limits: Limits, device: torch.device, capability: Capability) -> DecodeRowBuilder:
    from adaverify_metadata import FlattenRowBuilder

    del capability
    return FlattenRowBuilder("flatten-rocm", limits, device, backend="triton", launch=launch_config())


@hookimpl
def adaverify_register_decode_strategies() -> Sequence[DecodeStrategyDescriptor]:
    """Return the strategy, below the embedded default: never executed, so taken only when named.

    No graph of it was ever captured, so it claims none.
    """
    return (
        DecodeStrategyDescriptor(
            name="flatten-rocm",
            requirements=CHIPS,
            graph_support=GraphSupport.NEVER,
            device_lengths=True,
            priority=-10,
            evidence="compiled",
            allocate=_flatten,
        ),
    )
