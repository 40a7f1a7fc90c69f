"""Plugins that need a device: dropped with the reason, or an error where they were named."""

import pytest

from adaverify_contracts import LoadOutcome, PluginError, Requirements
from adaverify_runtime.plugins import PluginManager


def test_a_plugin_whose_device_is_absent_is_dropped_with_the_reason(make):
    """ADAVERIFY_REQUIRES is checked once the device is known; the rest stays."""
    picky = make.plugin(make.strategy("picky"))
    picky.ADAVERIFY_REQUIRES = Requirements(device_types=("cuda",), modules=("no_such_module_anywhere",))
    manager = PluginManager()
    manager.register(picky, "picky")
    manager.register(make.plugin(make.strategy("easy")), "easy")
    manager.check_requirements(make.capability())
    outcome = {item.name: item for item in manager.plugins()}
    assert outcome["picky"].outcome is LoadOutcome.UNMET
    assert "device type is cpu" in outcome["picky"].reason
    assert "no_such_module_anywhere is not installed" in outcome["picky"].reason
    assert [item.descriptor.name for item in manager.decode_strategies()] == ["easy"]


def test_a_plugin_named_explicitly_whose_device_is_absent_is_an_error(make):
    """A name the user typed is found and works, or the start fails."""
    picky = make.plugin(make.strategy("picky"))
    picky.ADAVERIFY_REQUIRES = Requirements(device_types=("cuda",))
    manager = PluginManager()
    manager.name_explicitly(("picky",))
    manager.register(picky, "picky")
    with pytest.raises(PluginError, match=r"picky \(requirement unmet\): device type is cpu"):
        manager.check_requirements(make.capability())


def test_requirements_of_the_wrong_type_are_an_error(make, assert_empty):
    """A string where Requirements belong would otherwise never be unmet."""
    picky = make.plugin(make.strategy("picky"))
    picky.ADAVERIFY_REQUIRES = "cuda"
    manager = PluginManager()
    with pytest.raises(PluginError, match="ADAVERIFY_REQUIRES is not a Requirements"):
        manager.register(picky, "picky")
    assert_empty(manager)


def test_a_met_requirement_keeps_the_plugin(make):
    """The fitting case of the same check."""
    picky = make.plugin(make.strategy("picky"))
    picky.ADAVERIFY_REQUIRES = Requirements(device_types=("cpu",))
    manager = PluginManager()
    manager.register(picky, "picky")
    manager.check_requirements(make.capability())
    assert len(manager.decode_strategies()) == 1
