"""The strategy ``flatten-sm120``, opt-in."""

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

CHIPS = Requirements(
    device_types=("cuda",),
    architectures=("sm120",),
    kernels=("triton",),
    refusals=(("sm121", "compiled for sm120 only; sm121 has faults of its own (DeepGEMM #425)"),),
)


def launch_config() -> LaunchConfig:
    """Return the launch that the strategy uses, and that its test compiles."""
    from adaverify_metadata import LaunchConfig

    return LaunchConfig()


def _flatten(limits: Limits, device: torch.device, capability: Capability) -> DecodeRowBuilder:
    from adaverify_metadata import FlattenRowBuilder

    del capability
    # No schedule: which kernel library reads these rows here is not known.
    return FlattenRowBuilder("flatten-sm120", limits, device, backend="triton", launch=launch_config())


@hookimpl
def adaverify_register_decode_strategies() -> Sequence[DecodeStrategyDescriptor]:
    """Return the strategy, below the embedded default: never executed, so taken only when named.

    Its one launch reads every length from the device and its grid depends on padded shapes alone.
    """
    return (
        DecodeStrategyDescriptor(
            name="flatten-sm120",
            requirements=CHIPS,
            graph_support=GraphSupport.VARLEN_DECODE,
            device_lengths=True,
            priority=-10,
            evidence="compiled",
            allocate=_flatten,
        ),
    )
