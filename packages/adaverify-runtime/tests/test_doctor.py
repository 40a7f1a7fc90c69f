"""The doctor: the whole report before a model, for this machine or an assumed one."""

import json
from dataclasses import replace

import pytest

from adaverify_contracts import Limits, Requirements, UnknownNameError, hookimpl
from adaverify_runtime import (
    DeviceSettings,
    GraphSettings,
    PathSettings,
    PlannerSettings,
    Settings,
    admit,
    doctor,
)


@pytest.fixture
def fleet(make, real_plugins):
    """The built-ins and two strategies of other hardware, which are never allocated here."""

    class Hardware:
        @hookimpl
        def adaverify_register_decode_strategies(self):
            kernels = ("paged-mqa-logits",)
            return (
                make.strategy(
                    "flat-rows", priority=20, requirements=Requirements(("cuda",), ("sm90",), kernels)
                ),
                make.strategy(
                    "ragged-rows",
                    priority=20,
                    requirements=Requirements(("cuda",), ("sm100", "sm103"), kernels),
                ),
            )

        @hookimpl
        def adaverify_register_models(self):
            return (make.model("large"),)

    return real_plugins(Hardware())


@pytest.mark.parametrize(
    ("word", "kernels", "chosen"),
    [
        ("sm90", ("paged-mqa-logits",), "flat-rows"),
        ("sm100", ("paged-mqa-logits",), "ragged-rows"),
        ("sm120", ("paged-mqa-logits",), "reference"),
        ("sm90", (), "reference"),
        ("gfx950", (), "reference"),
        ("cpu", (), "reference"),
    ],
)
def test_every_path_is_visible_without_its_hardware(fleet, word, kernels, chosen):
    """Nothing is probed, allocated or loaded: the factories of this fleet raise when called."""
    report = doctor(assume=word, kernels=kernels, plugins=fleet)
    assert {item.name for item in report.strategies if item.chosen} == {chosen, "uniform"}
    assert report.problems == ()
    assert report.capability.assumed
    json.dumps(report.as_dict())


def test_this_machine_is_probed(fleet):
    """Without an assumption the device is executed on."""
    report = doctor(device="cpu", plugins=fleet)
    assert not report.capability.assumed
    assert report.capability.kernel("torch-matmul").level.name == "EXECUTED"


def test_problems_are_all_in_one_report(fleet):
    """vllm #56620, recipes #962: strategy, backend, signal and policy are wrong, and all four are said."""
    settings = Settings(
        device=DeviceSettings(strategy="flat-rows"),
        graphs=GraphSettings(backend="cuda"),
        planner=PlannerSettings(signal="psychic", policy="greed"),
    )
    report = doctor(settings, "cpu", plugins=fleet)
    assert len(report.problems) == 4
    text = "\n".join(report.problems)
    for words in ("flat-rows", "graph backend 'cuda'", "psychic", "greed"):
        assert words in text
    assert {item.name for item in report.strategies} == {"reference", "uniform", "flat-rows", "ragged-rows"}
    assert not any(item.chosen for item in report.strategies)
    assert any("architecture is cpu, needs sm90" in why for item in report.strategies for why in item.reasons)


def test_limits_are_asked_when_they_are_given(make, real_plugins):
    """A strategy's own opinion of the sizes is among the reasons."""

    class Picky:
        @hookimpl
        def adaverify_register_decode_strategies(self):
            supports = lambda limits: (f"page size {limits.page_size} is not served",)  # noqa: E731
            return (make.strategy("picky", priority=9, supports=supports),)

    plugins = real_plugins(Picky())
    limits = Limits(max_requests=2, draft_tokens=1, max_model_len=64, page_size=16)
    without, given = (
        doctor(device="cpu", plugins=plugins),
        doctor(device="cpu", plugins=plugins, limits=limits),
    )
    assert without.strategies[0].chosen
    assert given.strategies[0].reasons == ("page size 16 is not served",)


def test_an_unknown_word_lists_the_table(fleet):
    """A family is not a word of the table."""
    with pytest.raises(UnknownNameError, match="sm90"):
        doctor(assume="sm12x", plugins=fleet)


def test_an_installed_probe_that_was_not_run_is_not_called_missing(make, real_plugins):
    """``--assume sm90`` said that no installed probe reports 'triton', beside the installed probe."""

    class Tiled:
        @hookimpl
        def adaverify_register_decode_strategies(self):
            needs = Requirements(("cuda",), ("sm90",), ("triton", "warp-drive"))
            return (make.strategy("tiled", priority=20, requirements=needs),)

    plugins = real_plugins(Tiled())
    report = doctor(assume="sm90", plugins=plugins)
    (tiled,) = [item for item in report.strategies if item.name == "tiled"]
    triton, drive = tiled.reasons
    assert triton == "kernel triton was not run on the assumed device, needs executed"
    why = report.capability.kernel("triton").reason
    assert why == "its probe was not run, since sm90 is only assumed; --kernel triton takes it as executed"
    assert "no installed probe reports 'warp-drive'" in drive
    assert "device: sm90 is assumed; no kernel is taken as executed" in report.notes
    stated = doctor(assume="sm90", kernels=("triton", "warp-drive"), plugins=plugins)
    assert {item.name for item in stated.strategies if item.chosen} == {"tiled", "uniform"}
    assert "device: sm90 is assumed; kernels taken as executed: triton, warp-drive" in stated.notes


def _abort(facts):
    import os

    os.abort()


def test_a_probe_that_aborts_is_an_absent_kernel_and_the_report_is_complete(make, real_plugins):
    """A kernel library that dies of this driver ended ``doctor`` with it."""
    from adaverify_contracts import KernelLevel, ProbeDescriptor

    class Deadly:
        @hookimpl
        def adaverify_register_probes(self):
            return (
                ProbeDescriptor("deadly", ("cpu",), _abort),
                ProbeDescriptor("nameless", ("cpu",), lambda facts: _abort(facts)),
            )

        @hookimpl
        def adaverify_register_decode_strategies(self):
            return (make.strategy("needy", priority=20, requirements=Requirements(kernels=("deadly",))),)

    report = doctor(device="cpu", plugins=real_plugins(Deadly()))
    for name in ("deadly", "nameless"):
        assert report.capability.kernel(name).level is KernelLevel.ABSENT
        assert "SIGABRT" in report.capability.kernel(name).reason
    assert report.capability.kernel("torch-matmul").level is KernelLevel.EXECUTED
    assert any("SIGABRT" in why for item in report.strategies for why in item.reasons)
    assert {item.name for item in report.strategies if item.chosen} == {"reference", "uniform"}


def test_a_graph_level_that_is_not_to_be_had_is_a_problem(real_plugins):
    """The doctor refuses what ``assemble`` would refuse."""
    settings = Settings(graphs=GraphSettings(mode="varlen"))
    report = doctor(settings, "cpu", plugins=real_plugins())
    assert any("VARLEN_DECODE was asked for" in problem for problem in report.problems)
    assert not doctor(Settings(), "cpu", plugins=real_plugins()).problems


def test_a_drafter_that_fails_when_it_is_asked_is_a_warning(make, real_plugins):
    """The others are asked all the same, and a verifier can be assembled."""

    class Drafters:
        @hookimpl
        def adaverify_register_drafters(self):
            return (
                replace(make.drafter("broken"), obstacle=lambda k: 1 // 0),
                replace(make.drafter("narrow"), obstacle=lambda k: f"K is {k}"),
            )

    report = doctor(device="cpu", plugins=real_plugins(Drafters()))
    assert report.problems == ()
    assert "drafter narrow cannot serve: K is 7" in report.notes
    (warning,) = report.warnings
    assert warning.startswith("drafter 'broken' of plugin 'extra-0': obstacle raised ZeroDivisionError")


@pytest.mark.parametrize("text", [None, "null", "{", '{"signal": "psychic"}'])
def test_a_calibration_file_that_would_stop_the_start_is_a_problem(fleet, tmp_path, text):
    """``assemble`` reads it, so that a report without problems promised too much."""
    path = tmp_path / "calibration.json"
    if text is not None:
        path.write_text(text)
    report = doctor(Settings(paths=PathSettings(calibration=path)), "cpu", plugins=fleet)
    (problem,) = report.problems
    assert problem.startswith("ADAVERIFY_PATHS_CALIBRATION: ")


def test_a_calibration_file_that_serves_is_none(fleet, tmp_path):
    path = tmp_path / "calibration.json"
    path.write_text("[1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]")
    report = doctor(Settings(paths=PathSettings(calibration=path)), "cpu", plugins=fleet)
    assert report.problems == ()


def test_a_capability_may_be_given(fleet, make):
    """Nothing is probed twice where the caller has probed."""
    given = make.capability()
    assert doctor(device="cpu", plugins=fleet, capability=given).capability is given


def test_a_plugin_of_another_device_is_dropped_before_anything_is_taken(make, real_plugins):
    """``admit`` probes where a plugin requires anything, and only there."""

    class Elsewhere:
        ADAVERIFY_REQUIRES = Requirements(architectures=("sm90",))

        @hookimpl
        def adaverify_register_models(self):
            return (make.model("theirs"),)

    assert admit(Settings(), real_plugins(), "cpu") is None
    plugins = real_plugins(Elsewhere())
    assert admit(Settings(), plugins, "cpu").architecture == "cpu"
    assert plugins.models() == ()
    assert admit(Settings(), plugins, "cpu") is None
