"""``assemble`` given the wrong types: a typed error with what to do, never a raw one and never silence."""

import pytest
import torch

from adaverify_contracts import (
    AdaverifyError,
    CalibrationError,
    Capability,
    CapabilityError,
    CostTableError,
    DescriptorError,
    GraphError,
    Limits,
    LimitsError,
    NoStrategyError,
    PlanError,
    PluginError,
    SettingsError,
)
from adaverify_runtime import assemble

LIMITS = Limits(max_requests=2, draft_tokens=3, max_model_len=64, page_size=16)
WRONG = [
    ({"settings": {}}, SettingsError),
    ({"settings": {"planner": {}}}, SettingsError),
    ({"settings": "settings.toml"}, SettingsError),
    ({"plugins": {}}, PluginError),
    ({"plugins": []}, PluginError),
    ({"plugins": ["reference"]}, PluginError),
    ({"capability": {}}, CapabilityError),
    ({"capability": "sm90"}, CapabilityError),
    ({"drafter": "n-gram"}, DescriptorError),
    ({"drafter": 3}, DescriptorError),
    ({"cost_table": {}}, CostTableError),
    ({"cost_table": "table.json"}, CostTableError),
    ({"strategy": 3}, NoStrategyError),
    ({"row_costs": 3}, CostTableError),
    ({"target": 5}, CalibrationError),
    ({"mode": []}, SettingsError),
    ({"mode": 3}, SettingsError),
    ({"device": []}, CapabilityError),
    ({"device": "gpu"}, CapabilityError),
]


@pytest.mark.parametrize(("arguments", "error"), WRONG, ids=str)
def test_an_argument_of_the_wrong_type_is_refused_by_name(arguments, error):
    """``settings={}`` was taken for no settings; the others ended in AttributeError somewhere inside."""
    with pytest.raises(error) as caught:
        assemble(LIMITS, **{"device": "cpu", **arguments})
    assert isinstance(caught.value, AdaverifyError)
    assert caught.value.allowed
    assert caught.value.remedy


@pytest.mark.parametrize("limits", [None, "4", 4, {"max_requests": 4}])
def test_limits_of_the_wrong_type_are_refused(limits):
    """Before a device is probed."""
    with pytest.raises(LimitsError, match="to assemble for") as caught:
        assemble(limits, device="cpu")
    assert caught.value.remedy


def test_the_documented_types_are_taken():
    """None everywhere, and a torch device."""
    verifier = assemble(LIMITS, device=torch.device("cpu"))
    assert isinstance(verifier.capability, Capability)
    verifier.close()


@pytest.mark.parametrize("plan", [None, 5, "full"])
def test_deciding_for_what_is_no_plan_is_refused(verifier, plan):
    with pytest.raises(PlanError, match="is no plan") as caught:
        verifier().decide(plan)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("name", "call", "words"),
    [
        ("x", None, "cannot be called"),
        ("x", 5, "cannot be called"),
        (None, print, "no name"),
        ("", print, "no name"),
    ],
)
def test_an_observer_without_a_name_or_a_function_is_refused_at_once(verifier, name, call, words):
    """One that cannot be called was taken, and disabled only at the first step."""
    with pytest.raises(DescriptorError, match=words) as caught:
        verifier().add_observer(name, call)
    assert caught.value.allowed
    assert caught.value.remedy


@pytest.mark.parametrize(
    "arguments", [{"step": None}, {"step": 5}, {"prologue": 5}, {"progress": "yes"}, {"bytes_of": 3}], ids=str
)
def test_capturing_what_cannot_be_called_is_refused(verifier, arguments):
    """Also where nothing is captured: the mistake would wait for the first machine that captures."""
    with pytest.raises(GraphError, match=next(iter(arguments))) as caught:
        verifier().capture(**{"step": print, **arguments})
    assert caught.value.allowed
    assert caught.value.remedy


@pytest.mark.parametrize("mode", ["x", "FIXED", "", 3])
def test_a_mode_that_was_passed_is_not_blamed_on_the_settings(mode):
    """The message told to unset a variable that nobody had set."""
    with pytest.raises(SettingsError) as caught:
        assemble(LIMITS, device="cpu", mode=mode)
    assert caught.value.problems == {"mode": (mode, "none, fixed or adaptive")}
    assert "unset" not in str(caught.value)
    assert "pass one of them as mode" in caught.value.remedy
