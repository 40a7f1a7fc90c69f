"""Plugins that the manager refuses: whole, by name, and with nothing left behind."""

import pytest

from adaverify_contracts import PluginError, hookimpl
from adaverify_runtime.plugins import REGISTRATION_HOOKS, PluginManager


def test_a_misspelt_hook_fails_at_start_and_suggests_the_nearest(assert_empty):
    """A marked function that no hook is called after cannot do anything, so it is an error."""

    class Misspelt:
        @hookimpl
        def adaverify_register_signal(self):
            return ()

    manager = PluginManager()
    with pytest.raises(PluginError, match=r"'slip'.*adaverify_register_signal, did you mean") as caught:
        manager.register(Misspelt(), "slip")
    assert "did you mean adaverify_register_signals?" in str(caught.value)
    assert caught.value.plugin == "slip"
    assert_empty(manager)


def test_a_hook_without_its_marker_fails_at_start(assert_empty):
    """pluggy ignores an unmarked function without a word; we do not."""

    class Unmarked:
        def adaverify_register_policies(self):
            return ()

    manager = PluginManager()
    with pytest.raises(PluginError, match="adaverify_register_policies is not marked as a hook") as caught:
        manager.register(Unmarked(), "bare")
    assert "did you mean" not in str(caught.value)
    assert_empty(manager)


@pytest.mark.parametrize("hook", [*REGISTRATION_HOOKS, "adaverify_step_recorded"])
def test_a_wrong_signature_names_plugin_hook_and_argument(hook, assert_empty):
    """An argument that the hook does not offer can never be passed."""

    def implementation(self, surprise):
        return ()

    implementation.__name__ = hook
    plugin = type("Plugin", (), {hook: hookimpl(implementation)})()
    manager = PluginManager()
    with pytest.raises(PluginError, match=rf"'greedy': {hook} takes arguments.*surprise") as caught:
        manager.register(plugin, "greedy")
    assert caught.value.arrived == ("surprise",)
    assert_empty(manager)


def test_a_wrapper_around_other_plugins_is_refused():
    """A hook wrapper could change what others registered."""

    class Wrapper:
        @hookimpl(wrapper=True)
        def adaverify_register_signals(self):
            return (yield)

    with pytest.raises(PluginError, match="is a hook wrapper"):
        PluginManager().register(Wrapper(), "wrap")


@pytest.mark.parametrize("result", [None, "names", 7, {}, ("text",), [None], iter(())])
def test_a_wrong_result_names_plugin_and_hook(result, assert_empty):
    """Only a list or tuple of the right descriptors is a result."""

    class Wrong:
        @hookimpl
        def adaverify_register_drafters(self):
            return result

    manager = PluginManager()
    with pytest.raises(PluginError, match=r"'odd': adaverify_register_drafters returned something"):
        manager.register(Wrong(), "odd")
    assert_empty(manager)


def test_a_descriptor_of_another_kind_is_a_wrong_result(make):
    """A signal handed to the policies hook is refused by type."""

    class Swapped:
        @hookimpl
        def adaverify_register_policies(self):
            return (make.signal(),)

    with pytest.raises(PluginError, match="is not a PolicyDescriptor"):
        PluginManager().register(Swapped(), "swapped")


def test_nothing_is_half_registered_after_a_failure(make, assert_empty):
    """The first hook's results and the observer vanish when a later hook raises; the name stays free."""
    seen = []

    class Late:
        @hookimpl
        def adaverify_register_signals(self):
            return (make.signal(),)

        @hookimpl
        def adaverify_register_models(self):
            raise RuntimeError("no such file")

        @hookimpl
        def adaverify_step_recorded(self, record):
            seen.append(record)

    manager = PluginManager()
    with pytest.raises(RuntimeError, match="no such file"):
        manager.register(Late(), "late")
    assert_empty(manager)
    assert manager.signals() == ()
    manager.step_recorded(make.record())
    assert seen == []
    manager.register(make.plugin(make.strategy("a")), "late")
    assert len(manager.decode_strategies()) == 1


@pytest.mark.parametrize("plugin", [None, 5, 1.5, True, "str", b"", {}, [], (), len, lambda: None])
def test_a_plain_value_is_no_plugin(plugin, assert_empty):
    manager = PluginManager()
    with pytest.raises(PluginError, match="'plain' is no plugin"):
        manager.register(plugin, "plain")
    assert_empty(manager)


@pytest.mark.parametrize("name", ["", " ", 5, None, "a\nb", "\x1b[31mred", "x" * 10000, b"name"], ids=repr)
def test_a_name_is_short_printable_text(name, assert_empty):
    manager = PluginManager()
    with pytest.raises(PluginError, match="a plugin's name is not usable") as caught:
        manager.register(object(), name)
    assert len(str(caught.value)) < 500
    assert_empty(manager)


class Closed:
    def __dir__(self):
        raise ZeroDivisionError("look away")


def test_an_object_that_cannot_be_looked_at_is_refused_by_name(assert_empty):
    manager = PluginManager()
    for _ in range(2):
        with pytest.raises(PluginError, match=r"plugin 'shy' cannot be examined.*look away"):
            manager.register(Closed(), "shy")
    assert_empty(manager)
