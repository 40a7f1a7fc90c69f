"""Every hook of adaverify, in one file: read it to know the whole extension surface.

A plugin is a module (or object) published under the entry-point group ``adaverify`` whose functions carry the
``hookimpl`` marker. Registration hooks return frozen descriptors and do no work: they are called once at
start, their results are resolved to plain callables, and no hook is ever called on the decode path.
"""

# No ``from __future__ import annotations`` here: pluggy reads signatures only, and hook registration once
# broke on Python 3.14 through forward references.
from collections.abc import Sequence

import pluggy

from adaverify_contracts.benchmarks import BenchmarkDescriptor
from adaverify_contracts.capability import ProbeDescriptor
from adaverify_contracts.graphs import GraphBackendDescriptor
from adaverify_contracts.models import DrafterDescriptor, ModelDescriptor
from adaverify_contracts.record import StepRecord
from adaverify_contracts.strategy import DecodeStrategyDescriptor
from adaverify_contracts.verification import PolicyDescriptor, SignalDescriptor

PROJECT_NAME = "adaverify"
ENTRY_POINT_GROUP = "adaverify"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)


@hookspec
def adaverify_register_probes() -> Sequence[ProbeDescriptor]:
    """Return kernel probes. Called once at start, before the device is probed; all results are used."""
    raise NotImplementedError


@hookspec
def adaverify_register_decode_strategies() -> Sequence[DecodeStrategyDescriptor]:
    """Return decode strategies. Called once at start; all results are used, names must be unique."""
    raise NotImplementedError


@hookspec
def adaverify_register_signals() -> Sequence[SignalDescriptor]:
    """Return confidence sources, each declaring what it has seen. Called once; names must be unique."""
    raise NotImplementedError


@hookspec
def adaverify_register_policies() -> Sequence[PolicyDescriptor]:
    """Return budget policies, each declaring what its budget reads. Called once; names must be unique."""
    raise NotImplementedError


@hookspec
def adaverify_register_graph_backends() -> Sequence[GraphBackendDescriptor]:
    """Return graph backends. Called once at start; names must be unique."""
    raise NotImplementedError


@hookspec
def adaverify_register_drafters() -> Sequence[DrafterDescriptor]:
    """Return drafters for the reference engine. Called once at start; names must be unique."""
    raise NotImplementedError


@hookspec
def adaverify_register_models() -> Sequence[ModelDescriptor]:
    """Return target models for the reference engine. Called once at start; names must be unique."""
    raise NotImplementedError


@hookspec
def adaverify_register_benchmarks() -> Sequence[BenchmarkDescriptor]:
    """Return benchmarks for ``adaverify bench``. Called once at start; names must be unique."""
    raise NotImplementedError


@hookspec
def adaverify_step_recorded(record: StepRecord) -> None:
    """Observe one finished step. Called from a drain outside the decode path, in step order.

    All implementations are called. One that raises is disabled for the rest of the run, counted and reported;
    it never reaches the engine.
    """
