"""An outsider's plugin that breaks in its own way: a typed error with its name and code 3, never silence."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from adaverify_contracts import (
    BudgetReads,
    DrafterDescriptor,
    PolicyDescriptor,
    Seen,
    SignalDescriptor,
    hookimpl,
)
from adaverify_engine.drafters import NgramDrafter


def leaving(*arguments):
    sys.exit()


def cancelled(*arguments):
    raise asyncio.CancelledError("later")


class Odd:
    """Registers a signal, a policy and a drafter with one factory."""

    def __init__(self, factory):
        self.factory = factory

    @hookimpl
    def adaverify_register_signals(self):
        return (SignalDescriptor("odd", Seen.HISTORY, True, self.factory),)

    @hookimpl
    def adaverify_register_policies(self):
        return (PolicyDescriptor("odd", BudgetReads.HISTORY, self.factory),)

    @hookimpl
    def adaverify_register_drafters(self):
        return (DrafterDescriptor("odd", Seen.HISTORY, True, self.factory),)


FACTORIES = {
    "exits": (leaving, "factory raised SystemExit"),
    "cancelled": (cancelled, "factory raised CancelledError: later"),
    "divides": (lambda *_: 1 // 0, "factory raised ZeroDivisionError"),
    "none": (lambda *_: None, "factory returned something that is no"),
    "object": (lambda *_: object(), "factory returned something that is no"),
}


def refused(result, kind, plugin, words):
    assert result.exit_code == 3, result.stderr
    assert result.stdout == ""
    text = " ".join(result.stderr.split())
    assert f"PluginError: {kind} 'odd' of plugin '{plugin}': {words}" in text
    assert "fault of adaverify" not in text
    assert "ADAVERIFY_PLUGINS_DISABLED" in text


@pytest.mark.parametrize("kind", ["signal", "policy"])
@pytest.mark.parametrize(("factory", "words"), FACTORIES.values(), ids=FACTORIES)
def test_simulate_names_the_plugin(invoke, install, priced_file, monkeypatch, kind, factory, words):
    """``sys.exit()`` ended it with code 0 and no words, others as a fault of adaverify."""
    install(Odd(factory))
    monkeypatch.setenv(f"ADAVERIFY_PLANNER_{kind.upper()}", "odd")
    sizes = ("--concurrency", 2, "--tokens", 300, "--warmup", 32, "--arm", "adaptive")
    refused(invoke("simulate", "--table", priced_file, *sizes), kind, "extra-0", words)


@pytest.mark.parametrize(("factory", "words"), FACTORIES.values(), ids=FACTORIES)
def test_run_names_the_plugin_of_a_drafter(tiny, run_tiny, factory, words):
    tiny(Odd(factory))
    refused(run_tiny("--drafter", "odd", "--json"), "drafter", "extra-1", words)


@pytest.mark.parametrize(("factory", "words"), FACTORIES.values(), ids=FACTORIES)
def test_run_names_the_plugin_of_a_policy(tiny, run_tiny, monkeypatch, factory, words):
    tiny(Odd(factory))
    monkeypatch.setenv("ADAVERIFY_PLANNER_POLICY", "odd")
    refused(run_tiny("--json"), "policy", "extra-1", words)


def test_a_model_whose_loading_exits_names_its_plugin(tiny, run_tiny):
    """The same where no contract says what is made."""
    tiny(load=leaving)
    result = run_tiny("--json")
    assert result.exit_code == 3
    assert "plugin 'extra-0' raised SystemExit while it ran" in " ".join(result.stderr.split())


class Misspelt:
    @hookimpl
    def adaverify_register_polices(self):
        return ()


class Fine:
    @hookimpl
    def adaverify_register_drafters(self):
        return (DrafterDescriptor("fine", Seen.HISTORY, True, NgramDrafter),)


@pytest.mark.parametrize("json_asked", [True, False])
def test_a_contract_break_is_listed_beside_the_others(install, invoke, json_asked):
    """The command that is for finding out listed nothing."""
    install(Misspelt(), Fine())
    result = invoke("plugins", *(("--json",) if json_asked else ()))
    assert result.exit_code == 3
    assert "list extra-0 in ADAVERIFY_PLUGINS_DISABLED" in " ".join(result.stderr.split())
    if not json_asked:
        assert "did you mean" in result.stdout and "fine" in result.stdout
        return
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert rows["extra-0"]["outcome"] == "raised"
    assert "did you mean adaverify_register_policies?" in rows["extra-0"]["reason"]
    assert rows["extra-1"]["registered"] == {"drafters": ["fine"]}
    assert rows["verification"]["outcome"] == "loaded"
