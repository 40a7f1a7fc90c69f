"""Plugins that need a device: dropped with the reason, or an error where they were named."""

import pytest

from adaverify_contracts import LoadOutcome, PluginError, Requirements, UnknownNameError, hookimpl
from adaverify_runtime.plugins import PluginManager, PluginOutcome, pick


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
    picky = make.plugin(make.strategy("picky"))
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
