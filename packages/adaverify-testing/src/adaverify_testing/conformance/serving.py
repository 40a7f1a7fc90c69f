"""Asking a strategy's factory: which limits it serves, and whether what it makes can be examined at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from adaverify_contracts import Capability, DecodeRowBuilder, DecodeStrategyDescriptor, Limits, LimitsError
from adaverify_testing.conformance.blame import told
from adaverify_testing.conformance.report import READ, CheckFailed

if TYPE_CHECKING:
    import torch


def refusal(
    descriptor: DecodeStrategyDescriptor, limits: Limits, device: torch.device, capability: Capability
) -> str | None:
    """Return why the strategy refuses these limits, None when it serves them.

    Raises:
        CheckFailed: ``supports`` and ``allocate`` disagree or raise something untyped, or no builder came.
    """
    reasons = _reasons(descriptor, limits)
    if reasons:
        return "; ".join(reasons)
    try:
        builder = descriptor.allocate(limits, device, capability)
    except LimitsError as error:
        if descriptor.supports is not None:
            problem = f"supports({limits}) found no reason, yet allocate raised {told(error)}"
            raise CheckFailed(f"{problem}\n  contract: supports returns all reasons") from error
        return str(error)
    except Exception as error:
        hint = ""
        if device.type == "cpu" and "Triton" in str(error):
            hint = "\n  to do: run with TRITON_INTERPRET=1 in the environment, or on the device"
        raise CheckFailed(
            f"allocate raised {told(error)}\n  {limits}\n  contract: StrategyFactory returns a builder or "
            f"raises LimitsError{hint}"
        ) from error
    require_builder(builder, limits, device)
    return None


def _reasons(descriptor: DecodeStrategyDescriptor, limits: Limits) -> tuple[str, ...]:
    if descriptor.supports is None:
        return ()
    try:
        reasons = descriptor.supports(limits)
    except Exception as error:
        raise CheckFailed(
            f"supports of strategy {descriptor.name!r} raised {told(error)}\n  asked about {limits}\n"
            "  contract: supports returns all reasons, a tuple of str, empty when the limits can be served"
        ) from error
    if not isinstance(reasons, tuple) or not all(isinstance(reason, str) for reason in reasons):
        raise CheckFailed(f"supports returned {reasons!r}\n  contract: all reasons, a tuple of str")
    return reasons


def require_builder(builder: object, limits: Limits, device: torch.device) -> None:
    """Require a builder whose static tensors can be looked at.

    Raises:
        CheckFailed: names the missing part or the buffer.
    """
    import torch

    if not isinstance(builder, DecodeRowBuilder):
        missing = [part for part in ("strategy", "buffers", "build") if not hasattr(builder, part)]
        raise CheckFailed(f"allocate returned {type(builder).__name__}, which lacks {missing}\n{READ}")
    buffers = builder.buffers
    if not isinstance(buffers, Mapping) or not buffers:
        raise CheckFailed(
            f"buffers is {buffers!r} ({limits})\n  contract: every static tensor by name\n{READ}"
        )
    for key, tensor in buffers.items():
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != device.type:
            where = getattr(tensor, "device", type(tensor).__name__)
            raise CheckFailed(f"buffers[{key!r}] is on {where}, not a tensor on {device}\n{READ}")
