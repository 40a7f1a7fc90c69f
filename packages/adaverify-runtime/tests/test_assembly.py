"""A verifier assembled from the real parts: what is chosen, what is refused, what is reported."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from adaverify_contracts import (
    CapabilityError,
    GraphError,
    KernelLevel,
    KernelReport,
    Limits,
    LosslessError,
    NoStrategyError,
    SettingsError,
    UnknownNameError,
    hookimpl,
)
from adaverify_runtime import (
    DeviceSettings,
    GraphSettings,
    PlannerSettings,
    Settings,
    assemble,
)
from adaverify_runtime.assembly import unproven_kernels


def test_an_undeclared_drafter_is_planned_strictly(kit, verifier):
    """Without a declaration, sampled steps verify everything, and the report says why."""
    checker = verifier(drafter=None, cost_table=kit.cost, settings=kit.settings)
    assert any("drafter: not declared" in note for note in checker.report.notes)
    plan = checker.plan(kit.state(1, [3, 3, 3], sampled=True))
    assert plan.budget == 9
    assert checker.counters["lossless-downgrade"] == 1


def test_an_unsafe_pair_is_refused_when_the_setting_says_so(verifier):
    """The lossless rule as a start-up error."""
    settings = Settings(planner=PlannerSettings(signal="drafter", lossless="refuse"))
    with pytest.raises(LosslessError):
        verifier(drafter=None, settings=settings)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"strategy": "nowhere"}, UnknownNameError, "reference, uniform"),
        ({"strategy": "uniform", "mode": "adaptive"}, NoStrategyError, "does not read device lengths"),
        ({"settings": Settings(planner=PlannerSettings(signal="psychic"))}, UnknownNameError, "calibrated"),
        ({"settings": Settings(planner=PlannerSettings(policy="greed"))}, UnknownNameError, "ratio"),
        ({"settings": Settings(graphs=GraphSettings(backend="cuda"))}, CapabilityError, "device type is cpu"),
        ({"settings": Settings(graphs=GraphSettings(mode="varlen"))}, GraphError, "does not capture"),
        ({"mode": "sometimes"}, SettingsError, "none, fixed or adaptive"),
    ],
)
def test_what_the_user_named_is_used_or_it_is_an_error(verifier, options, error, words):
    """vllm #48277, #56626: nothing that was named is replaced in silence."""
    with pytest.raises(error, match=words):
        verifier(**options)


def test_settings_name_strategy_and_mode(verifier, monkeypatch):
    """The environment configures an engine that passes nothing."""
    monkeypatch.setenv("ADAVERIFY_DEVICE_STRATEGY", "reference")
    monkeypatch.setenv("ADAVERIFY_PLANNER_MODE", "fixed")
    monkeypatch.setenv("ADAVERIFY_PLANER_MODE", "none")
    checker = verifier()
    assert checker.manager.mode == checker.report.mode == "fixed"
    assert "ragged: reference was named explicitly" in checker.report.notes
    assert checker.report.warnings == (
        "ADAVERIFY_PLANER_MODE is set and no setting reads it, did you mean ADAVERIFY_PLANNER_MODE?",
    )


def test_a_setting_reaches_the_part_it_is_for(verifier):
    """Planner and relay settings arrive as plain options of the manager."""
    planner = PlannerSettings(margin=0.3, hysteresis=0.2, warmup_steps=5, explore_share=0.0, mixed_tiers=True)
    options = verifier(settings=Settings(planner=planner)).manager.options
    assert (options.margin, options.hysteresis, options.warmup_steps) == (0.3, 0.2, 5)
    assert (options.explore_share, options.mixed_tiers, options.mode) == (0.0, True, "adaptive")


def test_the_report_is_json_and_lists_everything_with_its_owner(verifier, real_plugins, every_hook):
    """One report: chosen or not, with reasons, distribution and version."""
    calls = []
    report = verifier(plugins=real_plugins(every_hook(calls))).report
    plain = json.loads(json.dumps(report.as_dict()))
    assert {item["name"]: item["chosen"] for item in plain["strategies"]} == {
        "reference": True,
        "uniform": True,
        "extra": False,
    }
    assert {item["name"] for item in plain["signals"]} >= {"optimistic", "calibrated", "drafter"}
    assert [item["name"] for item in plain["policies"] if item["chosen"]] == ["ratio"]
    assert {item["name"]: item["reasons"] for item in plain["backends"]}["cuda"] == [
        "device type is cpu, needs cuda or rocm"
    ]
    assert {item["name"]: item["outcome"] for item in plain["plugins"]}["reference"] == "loaded"
    assert {item["owner"] for item in plain["models"]} == {"extra-dist"}
    assert plain["capability"]["device_type"] == "cpu"
    assert plain["strategies"][0]["graph_support"] == "VARLEN_DECODE"
    assert plain["settings"]["planner"]["mode"] == "adaptive"
    assert plain["problems"] == []


def test_an_injected_capability_is_used_without_a_probe(verifier, real_plugins, make):
    """Every path is selectable on a CPU machine: no probe runs."""

    def forbidden(facts):
        raise AssertionError("probed")

    class Prober:
        @hookimpl
        def adaverify_register_probes(self):
            return (replace(make.probe("forbidden"), probe=forbidden),)

    capability = make.capability()
    checker = verifier(plugins=real_plugins(Prober()), capability=capability)
    assert checker.capability is capability


def test_a_kernel_that_gave_wrong_values_is_counted_by_name(verifier, real_plugins, make):
    """The fallback to other kernels is visible in every run; one that is right is not named."""

    def report(name, level):
        return lambda facts: KernelReport(name, "", level, "as probed")

    class Prober:
        @hookimpl
        def adaverify_register_probes(self):
            levels = {"wrong-here": KernelLevel.IMPORTED, "right-here": KernelLevel.EXECUTED}
            return tuple(
                replace(make.probe(name), device_types=("cpu",), probe=report(name, level))
                for name, level in levels.items()
            )

    checker = verifier(plugins=real_plugins(Prober()))
    unproven = {name for name in checker.counters if name.startswith("kernel-unproven:")}
    assert unproven == {"kernel-unproven:wrong-here"}


def test_only_kernels_of_this_device_count_as_unproven(real_plugins, make):
    """Absent on the card it is for: counted. For another card, or absent on a CPU: not."""

    class Prober:
        @hookimpl
        def adaverify_register_probes(self):
            made = replace(make.probe("for-hopper"), device_types=("cuda",), architectures=("sm90",))
            return (made, replace(make.probe("for-any"), device_types=("cpu", "cuda")))

    plugins = real_plugins(Prober())

    def named(word, kind):
        found = unproven_kernels(plugins, make.capability(word, kind))
        return {name for name in found if name.startswith("for-")}

    assert named("sm90", "cuda") == {"for-hopper", "for-any"}
    assert named("sm100", "cuda") == {"for-any"}
    assert named("cpu", "cpu") == set()


def test_a_strategy_that_refuses_the_limits_at_allocation_is_an_error(verifier, real_plugins, make):
    """A late refusal is no reason to take another strategy in silence."""
    from adaverify_contracts import LimitsError

    def refuse(limits, device, capability):
        raise LimitsError("page size is not served", arrived=limits.page_size)

    class Plugin:
        @hookimpl
        def adaverify_register_decode_strategies(self):
            return (make.strategy("late", priority=50, allocate=refuse),)

    with pytest.raises(NoStrategyError, match="'late' was chosen and refused these limits"):
        verifier(plugins=real_plugins(Plugin()))


def test_a_failed_plugin_is_a_warning_of_the_report(verifier, real_plugins):
    """vllm #48277: the reason of a plugin that did not load is in the start-up report."""
    from adaverify_contracts import LoadOutcome
    from adaverify_runtime.plugins import PluginOutcome

    plugins = real_plugins()
    plugins.record(PluginOutcome("broken", "some-dist", "1", LoadOutcome.IMPORT_FAILED, "no module x"))
    (warning,) = verifier(plugins=plugins).report.warnings
    assert "broken of some-dist was not loaded (import failed): no module x" in warning


def test_an_override_is_visible_in_the_report(verifier):
    """ADAVERIFY_DEVICE_OVERRIDE marks the capability as assumed."""
    checker = verifier(settings=Settings(device=DeviceSettings(override="cpu")))
    assert checker.capability.assumed


def test_importing_the_package_touches_no_device_and_no_environment():
    """A child process imports everything: CUDA stays uninitialised and no variable of ours is read."""
    code = (
        "import os, sys\n"
        "read = []\n"
        "get = os.environ.__class__.__getitem__\n"
        "def spy(self, key):\n"
        "    read.append(key)\n"
        "    return get(self, key)\n"
        "os.environ.__class__.__getitem__ = spy\n"
        "import adaverify_runtime, torch\n"
        "assert not [key for key in read if key.startswith('ADAVERIFY')], read\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert 'triton' not in sys.modules\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("device", ["tpu", "gpu:0", ""])
def test_a_device_that_torch_does_not_know_is_a_typed_error(device):
    """The word that arrived and those that are allowed, not torch's own list of 40."""
    with pytest.raises(CapabilityError, match="auto, cpu, cuda"):
        assemble(Limits(max_requests=2, draft_tokens=3, max_model_len=32, page_size=4), device=device)
