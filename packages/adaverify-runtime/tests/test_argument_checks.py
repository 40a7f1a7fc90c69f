"""``assemble`` given the wrong types: a typed error with what to do, never a raw one and never silence."""

import pytest
import torch

from adaverify_contracts import (
    AdaverifyError,
    Capability,
    CapabilityError,
    CostTableError,
    DescriptorError,
    Limits,
    LimitsError,
    NoStrategyError,
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
