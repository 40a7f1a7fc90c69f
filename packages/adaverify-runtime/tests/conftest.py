"""Fixtures: an environment without our variables, and descriptors made on the spot."""

import os
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import numpy as np
import pytest
import torch

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
    Limits,
    ModelDescriptor,
    Plan,
    PlanState,
    PolicyDescriptor,
    ProbeDescriptor,
    Requirements,
    Seen,
    SignalDescriptor,
    StepOutcome,
    StepRecord,
    StepState,
    hookimpl,
)
from adaverify_runtime import PlannerSettings, PluginSettings, Settings, assemble, load_plugins
from adaverify_verification import CostTable, Fingerprint


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


def make_plugin(*descriptors):
    """Return a plugin that registers these decode strategies."""

    class Plugin:
        @hookimpl
        def adaverify_register_decode_strategies(self):
            return descriptors

    return Plugin()


@pytest.fixture
def make():
    """Makers of descriptors and values, each with one good default a test overrides."""
    return SimpleNamespace(
        strategy=make_strategy,
        plugin=make_plugin,
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


@pytest.fixture
def assert_empty():
    """Return a check that a plugin manager holds nothing."""

    def check(manager):
        assert manager.decode_strategies() == ()
        assert manager.plugins() == ()
        assert manager.step_observers() == ()

    return check


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


LIMITS = Limits(max_requests=4, draft_tokens=3, max_model_len=64, page_size=4)
DRAFTER = DrafterDescriptor("echo", Seen.HISTORY, True, dict)
TABLE = CostTable.from_points(
    Fingerprint.from_mapping({"device": "a test"}),
    # 8 tokens cost what 1 does; from the ninth on a step costs five times as much.
    [
        (tokens, requests, 16, 0.01 if tokens <= 8 else 0.05)
        for tokens in (1, 2, 4, 8, 9, 16)
        for requests in (1, 4)
    ],
)
DRAFTER_SIGNAL = Settings(planner=PlannerSettings(signal="drafter", warmup_steps=0, online=False))
SURE, HOPELESS = 12.0, -12.0


@pytest.fixture
def verifier(real_plugins):
    """Return a maker of verifiers; every one is closed."""
    made = []

    def make(*, limits=LIMITS, plugins=None, **options):
        options.setdefault("drafter", DRAFTER)
        made.append(assemble(limits, device="cpu", plugins=plugins or real_plugins(), **options))
        return made[-1]

    yield make
    for item in made:
        item.close()


def state_of(step, scheduled, **changes):
    requests = len(scheduled)
    values = {
        "step": step,
        "slots": np.arange(requests, dtype=np.int64),
        "generations": np.zeros(requests, dtype=np.int64),
        "scheduled": np.array(scheduled, dtype=np.int64),
        "emitting": requests,
        "kv_tokens": 8 * requests,
    }
    return StepState(**{**values, **changes})


def tensors(*values):
    return tuple(torch.tensor(value, dtype=torch.int32) for value in values)


def table_of(limits=LIMITS, requests=None):
    rows = limits.max_requests if requests is None else requests
    pages = torch.arange(rows * limits.table_width, dtype=torch.int32)
    return pages.view(rows, limits.table_width)


def outcome_of(state, plan, staged, accepted=None, seconds=0.01):
    admitted = staged.assignment.admitted[: state.requests].numpy().astype(np.int64)
    accepted = admitted if accepted is None else np.minimum(accepted, admitted)
    return StepOutcome(
        step=state.step,
        slots=state.slots,
        generations=state.generations,
        drafted=state.scheduled,
        admitted=admitted,
        accepted=accepted,
        scores=np.zeros((state.requests, LIMITS.draft_tokens), dtype=np.float32),
        learn=np.ones(state.requests, dtype=bool),
        sampled=np.zeros(state.requests, dtype=bool),
        emitted=int(accepted.sum()) + state.requests,
        seconds=seconds,
    )


@pytest.fixture
def kit():
    """Limits, prices and makers of the values of a step, which fit each other."""
    return SimpleNamespace(
        limits=LIMITS,
        cost=TABLE,
        settings=DRAFTER_SIGNAL,
        sure=SURE,
        hopeless=HOPELESS,
        state=state_of,
        tensors=tensors,
        table=table_of,
        outcome=outcome_of,
    )


@pytest.fixture
def every_hook(make):
    """Return a factory of a plugin that implements hooks of every kind and notes each call in a list."""

    def plugin(calls):
        class Everything:
            @hookimpl
            def adaverify_register_probes(self):
                calls.append("probes")
                return ()

            @hookimpl
            def adaverify_register_decode_strategies(self):
                calls.append("strategies")
                return (make.strategy("extra", priority=-1),)

            @hookimpl
            def adaverify_register_signals(self):
                calls.append("signals")
                return ()

            @hookimpl
            def adaverify_register_policies(self):
                calls.append("policies")
                return ()

            @hookimpl
            def adaverify_register_graph_backends(self):
                calls.append("backends")
                return ()

            @hookimpl
            def adaverify_register_drafters(self):
                calls.append("drafters")
                return ()

            @hookimpl
            def adaverify_register_models(self):
                calls.append("models")
                return (make.model("never-loaded"),)

            @hookimpl
            def adaverify_step_recorded(self, record):
                calls.append(record.step)

        return Everything()

    return plugin
