"""A manager of a test sees only what the test defines."""

import pluggy
import pytest

from adaverify_contracts import (
    ENTRY_POINT_GROUP,
    PluginError,
    ProbeDescriptor,
    hookimpl,
)
from adaverify_testing import InlineDistribution, InlineEntryPoint, inline_entry_points, isolated_manager


class OneProbe:
    @hookimpl
    def adaverify_register_probes(self):
        return [ProbeDescriptor("paged", ("cpu",), lambda facts: None)]


def test_the_manager_holds_exactly_the_given_plugins():
    plugin = OneProbe()
    manager = isolated_manager(plugin)
    assert manager.get_plugins() == {plugin}
    ((probe,),) = manager.hook.adaverify_register_probes()
    assert probe.name == "paged"
    assert isolated_manager().hook.adaverify_register_probes() == []


def test_installed_plugins_cannot_be_discovered():
    with pytest.raises(PluginError, match="does not discover") as caught:
        isolated_manager().load_setuptools_entrypoints(ENTRY_POINT_GROUP)
    assert caught.value.arrived == "adaverify"


def test_a_misspelt_hook_fails():
    class Misspelt:
        @hookimpl
        def adaverify_register_probe(self):
            return []

    with pytest.raises(pluggy.PluginValidationError, match="adaverify_register_probe"):
        isolated_manager(Misspelt())


def test_an_argument_the_specification_lacks_fails():
    class Wrong:
        @hookimpl
        def adaverify_register_probes(self, device):
            return []

    with pytest.raises(pluggy.PluginValidationError, match="device"):
        isolated_manager(Wrong())


def test_two_managers_share_nothing():
    plugin = OneProbe()
    isolated_manager(plugin)
    assert isolated_manager().get_plugins() == set()


def test_an_inline_entry_point_reads_like_an_installed_one():
    plugin = OneProbe()
    first, second = inline_entry_points([("first", plugin), ("second", object())])
    assert first.load() is plugin
    assert (first.name, first.group, first.value) == ("first", "adaverify", "inline:first")
    assert (first.dist.name, first.dist.version, first.dist.requires) == ("first-distribution", "0", ())
    assert first.dist.name != second.dist.name


def test_a_broken_inline_entry_point_raises_what_it_was_given():
    broken = InlineEntryPoint("broken", ImportError("no such library"), InlineDistribution("other", "1.2"))
    with pytest.raises(ImportError, match="no such library"):
        broken.load()
