"""The strategies ``varlen`` and ``uniform-varlen``, and the probe ``deep-gemm-varlen``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from adaverify_contracts import (
    Capability,
    DecodeRowBuilder,
    DecodeStrategyDescriptor,
    GraphSupport,
    Limits,
    ProbeDescriptor,
    Requirements,
    hookimpl,
)
from adaverify_sm100_varlen.deep_gemm.probe import DEEP_GEMM, NAME
from adaverify_sm100_varlen.deep_gemm.versions import HEAD, LogitsContract, known_version

if TYPE_CHECKING:
    import torch

    from adaverify_metadata import VarlenRowBuilder

_OTHER_CODE = "DeepGEMM runs other code there, with open fault reports (DeepGEMM #392, #425, #433, #434)"
_NO_PROOF = "neither emulated nor compiled for that chip, and a family is no proof for its members"
# Exactly these two; the neighbours are the ones that people try.
BLACKWELL = Requirements(
    device_types=("cuda",),
    architectures=("sm100", "sm103"),
    kernels=("triton",),
    refusals=(
        ("sm101", _NO_PROOF),
        ("sm107", _NO_PROOF),
        ("sm110", _NO_PROOF),
        ("sm120", _OTHER_CODE),
        ("sm121", _OTHER_CODE),
    ),
)


def contract_of(capability: Capability) -> LogitsContract:
    """Return the contract of the library that the probe found; that of its main branch when it found none."""
    line = known_version(capability.kernel(NAME).version)
    return HEAD if line is None else line.contract


def _varlen(limits: Limits, device: torch.device, capability: Capability) -> DecodeRowBuilder:
    from adaverify_metadata import VarlenRowBuilder

    return _build(VarlenRowBuilder, "varlen", limits, device, capability)


def _uniform(limits: Limits, device: torch.device, capability: Capability) -> DecodeRowBuilder:
    from adaverify_sm100_varlen.uniform import VarlenUniformRowBuilder

    return _build(VarlenUniformRowBuilder, "uniform-varlen", limits, device, capability)


def _build(
    made: type[VarlenRowBuilder], name: str, limits: Limits, device: torch.device, capability: Capability
) -> DecodeRowBuilder:
    from adaverify_sm100_varlen.schedule import make_schedule

    # An assumed card on a CPU: a compiled kernel cannot run there, the reference can.
    backend: Literal["torch", "triton"] = "torch" if device.type == "cpu" else "triton"
    schedule = make_schedule(contract_of(capability), limits, device, capability.processors, backend=backend)
    return made(name, limits, device, backend=backend, schedule=schedule)


def _supports(limits: Limits) -> tuple[str, ...]:
    from adaverify_metadata.ops.schedule_launch import MAX_SCHEDULE_ROWS

    if limits.max_tokens <= MAX_SCHEDULE_ROWS:
        return ()
    most = f"{limits.max_requests} requests of {limits.max_query_len} query tokens"
    return (f"{most} are {limits.max_tokens} rows; the schedule kernel holds {MAX_SCHEDULE_ROWS}",)


@hookimpl
def adaverify_register_probes() -> Sequence[ProbeDescriptor]:
    """Return the probe of DeepGEMM's paged MQA logits with request indices; no strategy requires it."""
    return (DEEP_GEMM,)


@hookimpl
def adaverify_register_decode_strategies() -> Sequence[DecodeStrategyDescriptor]:
    """Return ``varlen`` and ``uniform-varlen``, both above the reference plugin; one layout of rows.

    ``varlen`` reads every length and request index from the device. ``uniform-varlen`` serves full
    verification, which would otherwise go to the reference plugin's ``uniform``: its rows are as wide as the
    query and carry no schedule, so the adapter refuses them.
    """
    return (
        DecodeStrategyDescriptor(
            name="varlen",
            requirements=BLACKWELL,
            graph_support=GraphSupport.ALWAYS,
            device_lengths=True,
            priority=20,
            evidence="emulated",
            allocate=_varlen,
            supports=_supports,
        ),
        DecodeStrategyDescriptor(
            name="uniform-varlen",
            requirements=BLACKWELL,
            graph_support=GraphSupport.UNIFORM_BATCH,
            device_lengths=False,
            priority=20,
            evidence="emulated",
            allocate=_uniform,
            supports=_supports,
        ),
    )
