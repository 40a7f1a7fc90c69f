"""What this plugin registers; the functions only return descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adaverify_contracts import (
    Capability,
    DecodeRowBuilder,
    DecodeStrategyDescriptor,
    GraphSupport,
    KernelLevel,
    KernelReport,
    Limits,
    ProbeDescriptor,
    Requirements,
    hookimpl,
)

if TYPE_CHECKING:
    import torch

NAME = "sample"


def probe_kernel(facts: Capability) -> KernelReport:
    """Run the smallest problem with a known answer and compare values."""
    import torch

    product = torch.tensor([[1.0, 2.0]]) @ torch.tensor([[3.0], [4.0]])
    level = KernelLevel.EXECUTED if product.item() == 11.0 else KernelLevel.IMPORTED
    return KernelReport(NAME, "0.1.0", level, f"1 x 3 + 2 x 4 gave {product.item():g} here")


def allocate_rows(limits: Limits, device: torch.device, capability: Capability) -> DecodeRowBuilder:
    """Make the static buffers once; this may allocate, ``build`` may not."""
    from adaverify_metadata import FlattenRowBuilder

    return FlattenRowBuilder(NAME, limits, device, backend="torch")


@hookimpl
def adaverify_register_probes() -> Sequence[ProbeDescriptor]:
    """Return how to ask a device whether the kernel works."""
    return (ProbeDescriptor(NAME, device_types=("cpu",), probe=probe_kernel),)


@hookimpl
def adaverify_register_decode_strategies() -> Sequence[DecodeStrategyDescriptor]:
    """Return the strategy: how query tokens become rows."""
    return (
        DecodeStrategyDescriptor(
            name=NAME,
            requirements=Requirements(device_types=("cpu",), kernels=(NAME,)),
            graph_support=GraphSupport.NEVER,
            device_lengths=True,
            # Above the embedded default (0), below the strategies of one chip (15 and 20). Of equal
            # priorities the name that sorts first is taken.
            priority=10,
            evidence="executed",
            allocate=allocate_rows,
        ),
    )
