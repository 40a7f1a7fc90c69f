"""What ``load_plugins`` is given and cannot take, and entry points that name nothing."""

from importlib.metadata import EntryPoint

import pytest

from adaverify_contracts import LoadOutcome, PluginError, SettingsError
from adaverify_runtime.loading import load_plugins
from adaverify_runtime.settings import PluginSettings


@pytest.mark.parametrize("settings", ["all", {}, 5])
def test_settings_that_are_none_are_refused_by_type(settings):
    with pytest.raises(SettingsError, match="a PluginSettings"):
        load_plugins(settings, ())


@pytest.mark.parametrize("points", [5, "plugins", ["plugins"]])
def test_entry_points_that_are_none_are_refused_by_type(points):
    with pytest.raises(PluginError, match="EntryPoint"):
        load_plugins(PluginSettings(), points)


def test_a_malformed_entry_point_is_said_to_be_malformed():
    point = EntryPoint("test-odd", "not a module!", "adaverify")
    (found,) = load_plugins(PluginSettings(), (point,)).plugins()
    assert found.outcome is LoadOutcome.IMPORT_FAILED
    assert "entry point is malformed: 'not a module!'" in found.reason
