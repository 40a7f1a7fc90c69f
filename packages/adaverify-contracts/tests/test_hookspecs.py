"""All hooks sit in one file and say when they are called and what to return."""

import inspect

import pluggy
import pytest

from adaverify_contracts import PROJECT_NAME, hookimpl, hookspecs

REGISTRATIONS = {
    "adaverify_register_probes",
    "adaverify_register_decode_strategies",
    "adaverify_register_signals",
    "adaverify_register_policies",
    "adaverify_register_graph_backends",
    "adaverify_register_drafters",
    "adaverify_register_models",
    "adaverify_register_benchmarks",
}
EVENTS = {"adaverify_step_recorded": ["record"]}


def _specs():
    return {
        name: value
        for name, value in vars(hookspecs).items()
        if inspect.isfunction(value) and hasattr(value, f"{PROJECT_NAME}_spec")
    }


def test_the_file_holds_exactly_the_hooks_of_the_design():
    assert set(_specs()) == REGISTRATIONS | set(EVENTS)


@pytest.mark.parametrize("name", sorted(REGISTRATIONS))
def test_a_registration_hook_takes_nothing_returns_a_sequence_and_all_results_count(name):
    spec = _specs()[name]
    assert list(inspect.signature(spec).parameters) == []
    assert str(spec.__annotations__["return"]).startswith("collections.abc.Sequence[")
    assert not getattr(spec, f"{PROJECT_NAME}_spec")["firstresult"]
    assert spec.__doc__.startswith("Return ")
    assert "Called once" in spec.__doc__


def test_the_event_says_where_it_is_called_from():
    spec = _specs()["adaverify_step_recorded"]
    assert list(inspect.signature(spec).parameters) == EVENTS["adaverify_step_recorded"]
    assert "outside the decode path" in spec.__doc__


def test_one_plugin_can_implement_every_hook():
    calls = []
    plugin = type("Plugin", (), {})()
    for name in REGISTRATIONS:
        setattr(plugin, name, hookimpl(_recorder(calls, name)))
    plugin.adaverify_step_recorded = hookimpl(
        lambda record: calls.append(("adaverify_step_recorded", record))
    )
    manager = pluggy.PluginManager(PROJECT_NAME)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin)
    manager.check_pending()
    for name in sorted(REGISTRATIONS):
        assert getattr(manager.hook, name)() == [[]]
    manager.hook.adaverify_step_recorded(record="record")
    assert calls == [*((name,) for name in sorted(REGISTRATIONS)), ("adaverify_step_recorded", "record")]


def _recorder(calls, name):
    def hook():
        calls.append((name,))
        return []

    return hook


def test_a_misspelt_hook_is_found():
    class Misspelt:
        @hookimpl
        def adaverify_register_signal(self):
            return []

    manager = pluggy.PluginManager(PROJECT_NAME)
    manager.add_hookspecs(hookspecs)
    manager.register(Misspelt())
    with pytest.raises(pluggy.PluginValidationError, match="adaverify_register_signal"):
        manager.check_pending()
