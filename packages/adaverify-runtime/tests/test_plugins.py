"""The plugin manager: one plugin at a time, whole or not at all."""

import pytest

from adaverify_contracts import (
    DuplicateNameError,
    LoadOutcome,
    PluginError,
    Requirements,
    UnknownNameError,
    hookimpl,
    hookspecs,
)
from adaverify_runtime.plugins import REGISTRATION_HOOKS, PluginManager, PluginOutcome, pick


def strategies(*descriptors):
    class Plugin:
        @hookimpl
        def adaverify_register_decode_strategies(self):
            return descriptors

    return Plugin()


def assert_empty(manager):
    assert manager.decode_strategies() == ()
    assert manager.plugins() == ()
    assert manager.step_observers() == ()


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
    manager.register(strategies(make.strategy("same")), "first", owner="dist-one")
    with pytest.raises(DuplicateNameError, match=r"decode strategy 'same'.*dist-one and dist-two") as caught:
        manager.register(
            strategies(make.strategy("fresh"), make.strategy("same")), "second", owner="dist-two"
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


def test_one_plugin_may_not_register_a_name_twice(make):
    """A duplicate inside one plugin is the same error."""
    manager = PluginManager()
    with pytest.raises(DuplicateNameError):
        manager.register(strategies(make.strategy("same"), make.strategy("same")), "only", owner="dist")
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
    manager.register(strategies(make.strategy("a")), "name", owner="dist-one")
    with pytest.raises(DuplicateNameError, match="dist-one and dist-two"):
        manager.register(strategies(make.strategy("b")), "name", owner="dist-two")
    assert [item.descriptor.name for item in manager.decode_strategies()] == ["a"]


def test_a_misspelt_hook_fails_at_start_and_suggests_the_nearest():
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


def test_a_hook_without_its_marker_fails_at_start():
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
def test_a_wrong_signature_names_plugin_hook_and_argument(hook):
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
def test_a_wrong_result_names_plugin_and_hook(result):
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


def test_nothing_is_half_registered_after_a_failure(make):
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
    manager.register(strategies(make.strategy("a")), "late")
    assert len(manager.decode_strategies()) == 1


def test_unregister_takes_everything_along(make):
    """What a plugin brought leaves with it, and only that."""
    manager = PluginManager()
    manager.register(strategies(make.strategy("a")), "first")
    manager.register(strategies(make.strategy("b")), "second")
    manager.unregister("first")
    assert [item.descriptor.name for item in manager.decode_strategies()] == ["b"]
    with pytest.raises(UnknownNameError, match="second"):
        manager.unregister("first")


def test_a_plugin_whose_device_is_absent_is_dropped_with_the_reason(make):
    """ADAVERIFY_REQUIRES is checked once the device is known; the rest stays."""
    picky = strategies(make.strategy("picky"))
    picky.ADAVERIFY_REQUIRES = Requirements(device_types=("cuda",), modules=("no_such_module_anywhere",))
    manager = PluginManager()
    manager.register(picky, "picky")
    manager.register(strategies(make.strategy("easy")), "easy")
    manager.check_requirements(make.capability())
    outcome = {item.name: item for item in manager.plugins()}
    assert outcome["picky"].outcome is LoadOutcome.UNMET
    assert "device type is cpu" in outcome["picky"].reason
    assert "no_such_module_anywhere is not installed" in outcome["picky"].reason
    assert [item.descriptor.name for item in manager.decode_strategies()] == ["easy"]


def test_a_plugin_named_explicitly_whose_device_is_absent_is_an_error(make):
    """A name the user typed is found and works, or the start fails."""
    picky = strategies(make.strategy("picky"))
    picky.ADAVERIFY_REQUIRES = Requirements(device_types=("cuda",))
    manager = PluginManager()
    manager.name_explicitly(("picky",))
    manager.register(picky, "picky")
    with pytest.raises(PluginError, match=r"picky \(requirement unmet\): device type is cpu"):
        manager.check_requirements(make.capability())


def test_requirements_of_the_wrong_type_are_an_error(make):
    """A string where Requirements belong would otherwise never be unmet."""
    picky = strategies(make.strategy("picky"))
    picky.ADAVERIFY_REQUIRES = "cuda"
    manager = PluginManager()
    with pytest.raises(PluginError, match="ADAVERIFY_REQUIRES is not a Requirements"):
        manager.register(picky, "picky")
    assert_empty(manager)


def test_a_met_requirement_keeps_the_plugin(make):
    """The fitting case of the same check."""
    picky = strategies(make.strategy("picky"))
    picky.ADAVERIFY_REQUIRES = Requirements(device_types=("cpu",))
    manager = PluginManager()
    manager.register(picky, "picky")
    manager.check_requirements(make.capability())
    assert len(manager.decode_strategies()) == 1


def test_pick_lists_what_is_known(make):
    """An unknown name says what there is."""
    manager = PluginManager()
    manager.register(strategies(make.strategy("a"), make.strategy("b")), "plugin")
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
    plugin = strategies(make.strategy("only"))
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

    class Equal(type(strategies())):
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


@pytest.mark.parametrize("plugin", [None, 5, 1.5, True, "str", b"", {}, [], (), len, lambda: None])
def test_a_plain_value_is_no_plugin(plugin):
    manager = PluginManager()
    with pytest.raises(PluginError, match="'plain' is no plugin"):
        manager.register(plugin, "plain")
    assert_empty(manager)


@pytest.mark.parametrize("name", ["", " ", 5, None, "a\nb", "\x1b[31mred", "x" * 10000, b"name"], ids=repr)
def test_a_name_is_short_printable_text(name):
    manager = PluginManager()
    with pytest.raises(PluginError, match="a plugin's name is not usable") as caught:
        manager.register(object(), name)
    assert len(str(caught.value)) < 500
    assert_empty(manager)


class Closed:
    def __dir__(self):
        raise ZeroDivisionError("look away")


def test_an_object_that_cannot_be_looked_at_is_refused_by_name():
    manager = PluginManager()
    for _ in range(2):
        with pytest.raises(PluginError, match=r"plugin 'shy' cannot be examined.*look away"):
            manager.register(Closed(), "shy")
    assert_empty(manager)


class Whole:
    """Registers one of everything, and observes."""

    ADAVERIFY_REQUIRES = Requirements(architectures=("sm90",))

    def __init__(self, make):
        self.make = make

    @hookimpl
    def adaverify_register_probes(self):
        return (self.make.probe(),)

    @hookimpl
    def adaverify_register_decode_strategies(self):
        return (self.make.strategy(),)

    @hookimpl
    def adaverify_register_signals(self):
        return (self.make.signal(),)

    @hookimpl
    def adaverify_register_policies(self):
        return (self.make.policy(),)

    @hookimpl
    def adaverify_register_graph_backends(self):
        return (self.make.backend(),)

    @hookimpl
    def adaverify_register_drafters(self):
        return (self.make.drafter(),)

    @hookimpl
    def adaverify_register_models(self):
        return (self.make.model(),)

    @hookimpl
    def adaverify_register_benchmarks(self):
        return (self.make.benchmark(),)

    @hookimpl
    def adaverify_step_recorded(self, record):
        raise AssertionError("an observer of a plugin that is not used was called")


KINDS = (
    "probes",
    "decode_strategies",
    "signals",
    "policies",
    "graph_backends",
    "drafters",
    "models",
    "benchmarks",
)


def test_nothing_of_a_plugin_with_an_unmet_requirement_is_left(make):
    """Neither what any hook registered nor its observer; the message for its names has the reason."""
    manager = PluginManager()
    assert not manager.requiring
    manager.register(Whole(make), "whole")
    assert manager.requiring
    assert manager.requirements("whole") is Whole.ADAVERIFY_REQUIRES
    assert all(len(getattr(manager, kind)()) == 1 for kind in KINDS)
    manager.check_requirements(make.capability())
    assert not any(getattr(manager, kind)() for kind in KINDS)
    manager.step_recorded(make.record())
    assert not manager.requiring
    assert manager.requirements("whole") == Requirements()
    why = "plugin whole was not loaded (requirement unmet): architecture is cpu, needs sm90"
    assert manager.not_loaded() == (why,)
    for kind in KINDS:
        with pytest.raises(UnknownNameError) as caught:
            pick(getattr(manager, kind)(), kind, "any", manager.not_loaded())
        assert why in str(caught.value)


def test_requirements_that_change_later_are_those_of_the_start(make):
    """A plugin's attribute is read once: afterwards its reading could raise, or be something else."""
    picky = strategies(make.strategy("picky"))
    picky.ADAVERIFY_REQUIRES = Requirements(device_types=("cuda",))
    manager = PluginManager()
    manager.register(picky, "picky")
    picky.ADAVERIFY_REQUIRES = 5
    manager.check_requirements(make.capability())
    assert manager.decode_strategies() == ()


def test_plugins_that_are_not_used_for_one_reason_are_named_together():
    """A message for one name must not repeat a sentence for every plugin that is disabled."""
    manager = PluginManager()
    for name, outcome, reason in (
        ("a", LoadOutcome.DISABLED, "it is not listed"),
        ("b", LoadOutcome.RAISED, "OSError: boom"),
        ("c", LoadOutcome.DISABLED, "it is not listed"),
    ):
        manager.record(PluginOutcome(name, f"{name}-dist", "1", outcome, reason))
    assert manager.not_loaded() == (
        "plugins a, c were not loaded (disabled by setting): it is not listed",
        "plugin b was not loaded (raised): OSError: boom",
    )


def test_a_required_module_whose_package_raises_is_unmet(make, tmp_path, monkeypatch):
    """To find a module in a package the package is imported."""
    (tmp_path / "raising_package").mkdir()
    (tmp_path / "raising_package" / "__init__.py").write_text("raise RuntimeError('the driver is gone')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    needs = Requirements(modules=("raising_package.part",))
    assert needs.unmet(make.capability()) == ("module raising_package.part is not installed",)
