"""The strategies ``flatten``, ``paired`` and ``uniform-native``, the probe and the benchmark of DeepGEMM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adaverify_contracts import (
    BenchmarkDescriptor,
    BenchmarkOptions,
    BenchmarkResult,
    Capability,
    DecodeRowBuilder,
    DecodeStrategyDescriptor,
    Limits,
    PagedLogits,
    ProbeDescriptor,
    Requirements,
    hookimpl,
)
from adaverify_sm90_flatten.decision import use_flattening
from adaverify_sm90_flatten.deep_gemm.probe import DEEP_GEMM

if TYPE_CHECKING:
    import torch

    from adaverify_metadata import TailHeavySchedule

# Exactly this one: what was executed on (9, 0) says nothing about a neighbour.
HOPPER = Requirements(device_types=("cuda",), architectures=("sm90",), kernels=("triton",))


def _schedule(limits: Limits, device: torch.device, capability: Capability) -> TailHeavySchedule:
    from adaverify_metadata import TailHeavySchedule

    # Our own kernel: there without DeepGEMM, and no compile for each 32 rows as the library's needs.
    return TailHeavySchedule(limits, device, capability.processors, backend="triton")


def _flatten(limits: Limits, device: torch.device, capability: Capability) -> DecodeRowBuilder:
    from adaverify_metadata import FlattenRowBuilder

    schedule = _schedule(limits, device, capability)
    return FlattenRowBuilder("flatten", limits, device, backend="triton", schedule=schedule)


def _paired(limits: Limits, device: torch.device, capability: Capability) -> DecodeRowBuilder:
    from adaverify_metadata import PairedRowBuilder

    schedule = _schedule(limits, device, capability)
    return PairedRowBuilder("paired", limits, device, backend="triton", schedule=schedule)


def _uniform(limits: Limits, device: torch.device, capability: Capability) -> DecodeRowBuilder:
    from adaverify_sm90_flatten.uniform import NativeUniformRowBuilder

    schedule = _schedule(limits, device, capability)
    return NativeUniformRowBuilder("uniform-native", limits, device, backend="triton", schedule=schedule)


def _supports(limits: Limits) -> tuple[str, ...]:
    from adaverify_metadata.ops.schedule_launch import MAX_SCHEDULE_ROWS

    if limits.max_tokens <= MAX_SCHEDULE_ROWS:
        return ()
    most = f"{limits.max_requests} requests of {limits.max_query_len} query tokens"
    return (f"{most} are {limits.max_tokens} rows; the schedule kernel holds {MAX_SCHEDULE_ROWS}",)


def _row_logits(heads: int, head_dim: int, page_size: int, device: torch.device) -> PagedLogits:
    from adaverify_sm90_flatten.deep_gemm.row_logits import make_row_logits

    return make_row_logits(heads, head_dim, page_size, device)


@hookimpl
def adaverify_register_probes() -> Sequence[ProbeDescriptor]:
    """Return the probe of DeepGEMM's paged MQA logits; no strategy requires it."""
    return (DEEP_GEMM,)


def _logits(options: BenchmarkOptions) -> BenchmarkResult:
    from adaverify_sm90_flatten import bench

    return bench.run(options)


@hookimpl
def adaverify_register_benchmarks() -> Sequence[BenchmarkDescriptor]:
    """Return ``logits``, which needs DeepGEMM proven on this card."""
    needs = Requirements(HOPPER.device_types, HOPPER.architectures, (*HOPPER.kernels, DEEP_GEMM.name))
    description = "indexer logits with two query tokens a row, against one token a row"
    return (BenchmarkDescriptor("logits", description, needs, _logits),)


@hookimpl
def adaverify_register_decode_strategies() -> Sequence[DecodeStrategyDescriptor]:
    """Return ``flatten``, ``paired`` and ``uniform-native``, all above the reference plugin.

    ``flatten`` ranks above ``paired``: two tokens a row win where that was measured, in the table that
    ``adaverify bench logits`` writes and the runtime chooses by, and an unknown shape must not lose. Graph
    support comes from the decision that makes the rows.

    ``uniform-native`` is not called ``uniform``: that name is the reference plugin's, whose rows are as wide
    as the query, and two owners of a name are an error. The kernel here takes one or two query tokens a row
    and refuses eight, so a wider query is laid out in rows of two. It outranks ``uniform``, or full
    verification of K = 7 would be handed to the kernel in rows that it cannot read.
    """
    ragged = use_flattening(2, adaptive=True).graph_support
    uniform = use_flattening(2, adaptive=False).graph_support
    return (
        DecodeStrategyDescriptor(
            name="flatten",
            requirements=HOPPER,
            graph_support=ragged,
            device_lengths=True,
            priority=20,
            evidence="executed",
            allocate=_flatten,
            supports=_supports,
            logits=_row_logits,
        ),
        DecodeStrategyDescriptor(
            name="paired",
            requirements=HOPPER,
            graph_support=ragged,
            device_lengths=True,
            priority=15,
            evidence="executed",
            allocate=_paired,
            supports=_supports,
            logits=_row_logits,
        ),
        DecodeStrategyDescriptor(
            name="uniform-native",
            requirements=HOPPER,
            graph_support=uniform,
            device_lengths=False,
            priority=20,
            evidence="executed",
            allocate=_uniform,
            supports=_supports,
            logits=_row_logits,
        ),
    )
