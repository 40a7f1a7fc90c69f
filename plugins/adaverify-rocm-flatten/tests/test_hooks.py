"""Opt-in: never chosen unless named, and refused elsewhere."""

from importlib.metadata import EntryPoint

import pytest

from adaverify_capability import assume
from adaverify_contracts import NoStrategyError
from adaverify_rocm_flatten import hooks
from adaverify_runtime import PluginSettings, load_plugins
from adaverify_runtime.selection import select_strategies

POINTS = [EntryPoint(n, f"adaverify_{n}.hooks", "adaverify") for n in ("capability", "reference")]
POINTS.append(EntryPoint("rocm-flatten", "adaverify_rocm_flatten.hooks", "adaverify"))


@pytest.mark.parametrize("word", hooks.CHIPS.architectures)
def test_it_is_taken_only_when_named(word):
    plugins = load_plugins(PluginSettings(), entry_points=POINTS)
    capability = assume(word, ["triton"])
    assert select_strategies(plugins, capability, None, "adaptive").ragged.name == "reference"
    assert (
        select_strategies(plugins, capability, None, "adaptive", "flatten-rocm").ragged.name == "flatten-rocm"
    )


@pytest.mark.parametrize("word", ["cpu", "sm90", "sm100", "sm121", "gfx90a"])
def test_other_chips_are_refused(word):
    plugins = load_plugins(PluginSettings(), entry_points=POINTS)
    with pytest.raises(NoStrategyError, match="flatten-rocm"):
        select_strategies(plugins, assume(word, ["triton"]), None, "adaptive", "flatten-rocm")


def test_its_evidence_is_said():
    (strategy,) = hooks.adaverify_register_decode_strategies()
    assert (strategy.evidence, strategy.priority) == ("compiled", -10)
