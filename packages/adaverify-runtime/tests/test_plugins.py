"""The plugin manager: what plugins bring, under names that are taken once."""

import pytest

from adaverify_contracts import (
    DuplicateNameError,
    LoadOutcome,
    PluginError,
    UnknownNameError,
    hookimpl,
    hookspecs,
)
from adaverify_runtime.plugins import REGISTRATION_HOOKS, PluginManager, pick


def test_every_hook_is_called_once_in_the_order_of_the_hook_specs(make):
    """One plugin implements the whole surface; the order of the calls is the order of the file."""
    calls = []

    class Everything:
        @hookimpl
        def adaverify_step_recorded(self, record):
            calls.append(("adaverify_step_recorded", record.step))

        @hookimpl
        def adaverify_register_models(self):
            calls.append("adaverify_register_models")
            return (make.model(),)

        @hookimpl
        def adaverify_register_benchmarks(self):
            calls.append("adaverify_register_benchmarks")
            return (make.benchmark(),)

        @hookimpl
        def adaverify_register_drafters(self):
            calls.append("adaverify_register_drafters")
            return [make.drafter()]

        @hookimpl
        def adaverify_register_graph_backends(self):
            calls.append("adaverify_register_graph_backends")
            return (make.backend(),)

        @hookimpl
        def adaverify_register_policies(self):
            calls.append("adaverify_register_policies")
            return (make.policy(),)

        @hookimpl
        def adaverify_register_signals(self):
            calls.append("adaverify_register_signals")
            return (make.signal(),)

        @hookimpl
        def adaverify_register_decode_strategies(self):
            calls.append("adaverify_register_decode_strategies")
            return (make.strategy("one"), make.strategy("two"))

        @hookimpl
        def adaverify_register_probes(self):
            calls.append("adaverify_register_probes")
            return (make.probe(),)

    specs = [name for name in vars(hookspecs) if name.startswith("adaverify_")]
    manager = PluginManager()
    manager.register(Everything(), "everything", owner="every-dist", version="1.2")
    assert calls == specs[:-1] == list(REGISTRATION_HOOKS)
    manager.step_recorded(make.record(7))
    assert calls[-1] == ("adaverify_step_recorded", 7)
    assert len(calls) == len(specs)

    assert [item.descriptor.name for item in manager.decode_strategies()] == ["one", "two"]
    for entries in (
        manager.probes(),
        manager.signals(),
        manager.policies(),
        manager.graph_backends(),
        manager.drafters(),
        manager.models(),
        manager.benchmarks(),
    ):
        ((descriptor, plugin, owner, version),) = [
            (item.descriptor.name, item.plugin, item.owner, item.version) for item in entries
        ]
        assert descriptor
        assert (plugin, owner, version) == ("everything", "every-dist", "1.2")
    # Asking again resolves nothing again.
    assert len(calls) == len(specs)


def test_a_plugin_with_no_hooks_is_ordinary():
    """An empty plugin loads and registers nothing."""
    manager = PluginManager()
    manager.register(object(), "empty")
    assert [item.outcome for item in manager.plugins()] == [LoadOutcome.LOADED]
    assert manager.decode_strategies() == ()


def test_a_duplicate_name_names_both_distributions_and_leaves_the_first(make):
    """Two owners of one name: the error carries both, the second plugin leaves nothing behind."""
    manager = PluginManager()
    manager.register(make.plugin(make.strategy("same")), "first", owner="dist-one")
    with pytest.raises(DuplicateNameError, match=r"decode strategy 'same'.*dist-one and dist-two") as caught:
        manager.register(
            make.plugin(make.strategy("fresh"), make.strategy("same")), "second", owner="dist-two"
        )
    assert caught.value.owners == ("dist-one", "dist-two")
    assert [item.descriptor.name for item in manager.decode_strategies()] == ["same"]
    assert [item.name for item in manager.plugins()] == ["first"]


def test_two_benchmarks_of_one_name_are_an_error(make):
    """`adaverify bench NAME` must mean one thing."""

    class Bench:
        @hookimpl
        def adaverify_register_benchmarks(self):
            return (make.benchmark("gemm"),)

    manager = PluginManager()
    manager.register(Bench(), "first", owner="dist-one")
    with pytest.raises(DuplicateNameError, match=r"benchmark 'gemm'.*dist-one and dist-two"):
        manager.register(Bench(), "second", owner="dist-two")
    assert [item.owner for item in manager.benchmarks()] == ["dist-one"]


def test_one_plugin_may_not_register_a_name_twice(make, assert_empty):
    """A duplicate inside one plugin is the same error."""
    manager = PluginManager()
    with pytest.raises(DuplicateNameError):
        manager.register(make.plugin(make.strategy("same"), make.strategy("same")), "only", owner="dist")
    assert_empty(manager)


def test_one_name_in_two_kinds_is_no_duplicate(make):
    """Names are unique within a kind, not across kinds."""

    class Both:
        @hookimpl
        def adaverify_register_signals(self):
            return (make.signal("same"),)

        @hookimpl
        def adaverify_register_policies(self):
            return (make.policy("same"),)

    manager = PluginManager()
    manager.register(Both(), "both")
    assert len(manager.signals()) == len(manager.policies()) == 1


def test_a_plugin_name_is_taken_once(make):
    """The second plugin under one entry-point name is refused, naming both distributions."""
    manager = PluginManager()
    manager.register(make.plugin(make.strategy("a")), "name", owner="dist-one")
    with pytest.raises(DuplicateNameError, match="dist-one and dist-two"):
        manager.register(make.plugin(make.strategy("b")), "name", owner="dist-two")
    assert [item.descriptor.name for item in manager.decode_strategies()] == ["a"]


def test_unregister_takes_everything_along(make):
    """What a plugin brought leaves with it, and only that."""
    manager = PluginManager()
    manager.register(make.plugin(make.strategy("a")), "first")
    manager.register(make.plugin(make.strategy("b")), "second")
    manager.unregister("first")
    assert [item.descriptor.name for item in manager.decode_strategies()] == ["b"]
    with pytest.raises(UnknownNameError, match="second"):
        manager.unregister("first")


def test_pick_lists_what_is_known(make):
    """An unknown name says what there is."""
    manager = PluginManager()
    manager.register(make.plugin(make.strategy("a"), make.strategy("b")), "plugin")
    assert pick(manager.decode_strategies(), "decode strategy", "b").descriptor.name == "b"
    with pytest.raises(UnknownNameError, match="a, b"):
        pick(manager.decode_strategies(), "decode strategy", "c")


def test_a_module_is_a_plugin_and_its_imports_are_not_hooks(tmp_path, monkeypatch):
    """A foreign function that a module imported is not taken for an unmarked hook."""
    (tmp_path / "elsewhere_helper.py").write_text("def adaverify_helper():\n    return 1\n")
    (tmp_path / "importing_plugin.py").write_text(
        "from adaverify_contracts import hookimpl\n"
        "from elsewhere_helper import adaverify_helper\n"
        "@hookimpl\n"
        "def adaverify_register_signals():\n"
        "    return ()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import importlib

    manager = PluginManager()
    manager.register(importlib.import_module("importing_plugin"), "importing")
    assert [item.outcome for item in manager.plugins()] == [LoadOutcome.LOADED]


def test_an_observer_may_leave_the_argument_out(make):
    """pluggy allows fewer arguments than the spec; resolving keeps that."""
    calls = []

    class Short:
        @hookimpl
        def adaverify_step_recorded(self):
            calls.append("called")

    manager = PluginManager()
    manager.register(Short(), "short")
    manager.step_recorded(make.record())
    assert calls == ["called"]


def test_one_object_is_registered_once_however_often_it_is_tried(make):
    """The refusal took the first registration apart, so that the second attempt succeeded."""
    plugin = make.plugin(make.strategy("only"))
    manager = PluginManager()
    manager.register(plugin, "a")
    for _ in range(3):
        with pytest.raises(PluginError, match="'b' cannot be registered: it is registered as 'a' already"):
            manager.register(plugin, "b")
    assert [(item.descriptor.name, item.plugin) for item in manager.decode_strategies()] == [("only", "a")]
    assert [item.name for item in manager.plugins()] == ["a"]
    manager.unregister("a")
    manager.register(plugin, "b")
    assert [item.plugin for item in manager.decode_strategies()] == ["b"]


def test_a_plugin_that_is_equal_to_another_takes_nothing_of_it(make):
    """pluggy compares by equality; a refusal of the second must not cost the first its hooks."""

    class Equal(type(make.plugin())):
        def __init__(self, name):
            self.name = name

        def __eq__(self, other):
            return True

        __hash__ = object.__hash__

        @hookimpl
        def adaverify_register_decode_strategies(self):
            return (make.strategy(self.name),)

    manager = PluginManager()
    manager.register(Equal("one"), "a")
    for _ in range(2):
        with pytest.raises(PluginError, match="'b' cannot be registered"):
            manager.register(Equal("two"), "b")
    assert [item.descriptor.name for item in manager.decode_strategies()] == ["one"]
