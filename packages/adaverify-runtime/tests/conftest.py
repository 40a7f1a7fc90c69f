"""Fixtures: an environment without our variables, and descriptors made on the spot."""

import os
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from adaverify_contracts import (
    BenchmarkDescriptor,
    BudgetReads,
    Capability,
    DecodeStrategyDescriptor,
    DrafterDescriptor,
    GraphBackendDescriptor,
    GraphSupport,
    KernelLevel,
    KernelReport,
    ModelDescriptor,
    Plan,
    PlanState,
    PolicyDescriptor,
    ProbeDescriptor,
    Requirements,
    Seen,
    SignalDescriptor,
    StepRecord,
)
from adaverify_runtime import PluginSettings, load_plugins


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """Drop our variables, so that no test depends on the shell it runs in."""
    for name in list(os.environ):
        if name.upper().startswith("ADAVERIFY_"):
            monkeypatch.delenv(name)


def nothing(*arguments, **named):
    raise AssertionError("a factory was called although nothing should be made")


def make_strategy(name="alpha", **changes):
    values = {
        "name": name,
        "requirements": Requirements(),
        "graph_support": GraphSupport.VARLEN_DECODE,
        "device_lengths": True,
        "priority": 0,
        "evidence": "executed",
        "allocate": nothing,
    }
    return DecodeStrategyDescriptor(**{**values, **changes})


def make_capability(word="cpu", device_type="cpu", kernels=()):
    reports = tuple(KernelReport(name, "1", KernelLevel.EXECUTED, "assumed") for name in kernels)
    return Capability(device_type, word, f"fake {word}", None, 4, 0, kernels=reports, assumed=True)


def make_plan(requests=4, scheduled=28, budget=None, uniform=None, **changes):
    budget = scheduled if budget is None else budget
    values = {
        "step": 3,
        "state": PlanState.FULL,
        "reason": "a test",
        "budget": budget,
        "scheduled": scheduled,
        "requests": requests,
        "certain_tokens": requests,
        "tokens": requests + budget,
        "tier": requests + budget,
        "uniform_query_len": uniform,
        "predicted_seconds": None,
        "predicted_tokens": 0.0,
        "full_seconds": None,
        "full_tokens": 0.0,
        "lag": None,
        "digest": 0,
    }
    return Plan(**{**values, **changes})


def make_record(step=0):
    return StepRecord(
        step=step,
        state="full",
        reason="a test",
        requests=1,
        certain_tokens=1,
        scheduled=2,
        planned=2,
        verified=2,
        accepted=1,
        emitted=2,
        tokens=3,
        tier=3,
        strategy="uniform",
        predicted_seconds=None,
        realised_seconds=None,
        predicted_tokens=2.0,
        realised_tokens=2,
        lag=None,
        digest="0",
    )


@pytest.fixture
def make():
    """Makers of descriptors and values, each with one good default a test overrides."""
    return SimpleNamespace(
        strategy=make_strategy,
        capability=make_capability,
        plan=make_plan,
        record=make_record,
        probe=lambda name="gemm": ProbeDescriptor(name, ("cpu",), nothing),
        signal=lambda name="sure": SignalDescriptor(name, Seen.HISTORY, False, nothing),
        policy=lambda name="thrift": PolicyDescriptor(name, BudgetReads.HISTORY, nothing),
        backend=lambda name="film": GraphBackendDescriptor(name, Requirements(), False, 0, nothing),
        drafter=lambda name="echo": DrafterDescriptor(name, Seen.HISTORY, True, nothing),
        benchmark=lambda name="gemm": BenchmarkDescriptor(name, "a product", Requirements(), nothing),
        model=lambda name="toy": ModelDescriptor(name, "a toy", nothing),
    )


REAL_PLUGINS = {
    "capability": "adaverify_capability.hooks",
    "graphs": "adaverify_graphs.hooks",
    "reference": "adaverify_reference.hooks",
    "verification": "adaverify_verification.hooks",
}


@pytest.fixture
def real_plugins():
    """Load the real built-ins by entry point, as an installation would, and whatever a test adds."""

    def load(*more, settings=None):
        points = [EntryPoint(name, value, "adaverify") for name, value in REAL_PLUGINS.items()]
        manager = load_plugins(settings or PluginSettings(), entry_points=points)
        for number, plugin in enumerate(more):
            manager.register(plugin, f"extra-{number}", owner="extra-dist")
        return manager

    return load
