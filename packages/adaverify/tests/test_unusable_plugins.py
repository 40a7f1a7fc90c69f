"""A plugin that cannot be used here: nothing of it is used, and whoever asks for its names hears why."""

from __future__ import annotations

import json

import pytest

from adaverify.drafting import choose_drafting
from adaverify_contracts import (
    BudgetReads,
    DrafterDescriptor,
    ModelDescriptor,
    PluginError,
    PolicyDescriptor,
    Requirements,
    Seen,
    SignalDescriptor,
    hookimpl,
)
from adaverify_engine.drafters import NgramDrafter
from adaverify_runtime import contained_as
from adaverify_testing import TinyModel
from adaverify_verification import RatioPolicy
from adaverify_verification.signals import DrafterSignal

PRICES = ("--concurrency", 2, "--tokens", 300, "--warmup", 32, "--arm", "adaptive")


def never(*arguments):
    raise AssertionError("something of a plugin was used although it cannot be")


class Theirs:
    """Registers a model, a drafter, a signal and a policy of one name; all of them work."""

    def __init__(self, load=never):
        self.load = load

    @hookimpl
    def adaverify_register_signals(self):
        return (SignalDescriptor("theirs", Seen.HISTORY, True, DrafterSignal),)

    @hookimpl
    def adaverify_register_policies(self):
        return (PolicyDescriptor("theirs", BudgetReads.HISTORY, RatioPolicy),)

    @hookimpl
    def adaverify_register_drafters(self):
        return (DrafterDescriptor("theirs", Seen.HISTORY, True, NgramDrafter),)

    @hookimpl
    def adaverify_register_models(self):
        return (ModelDescriptor("theirs", "two layers", self.load, TinyModel().geometry),)


class Elsewhere(Theirs):
    ADAVERIFY_REQUIRES = Requirements(architectures=("sm90",))


class Failing(Theirs):
    """Raises in its last hook, so that all the others have answered."""

    @hookimpl
    def adaverify_register_models(self):
        raise OSError("no calibration")


CAUSES = {
    "requirement": (Elsewhere(), "(requirement unmet): architecture is cpu, needs sm90"),
    "hook": (Failing(), "(raised): a registration hook raised: OSError: no calibration"),
    "import": (ImportError("no libcuda"), "(import failed): importing inline:extra-1 failed: ImportError"),
}
ASKED = {
    "run a model": (("run", "--model", "theirs", "--device", "cpu"), "model", {}),
    "run a drafter": (("run", "--drafter", "theirs", "--device", "cpu"), "drafter", {}),
    "profile a model": (("profile", "--model", "theirs", "--device", "cpu"), "model", {}),
    "bench a drafter": (("bench", "all", "--drafter", "theirs", "--device", "cpu"), "drafter", {}),
    "audit a signal": (("audit", "--signal", "theirs"), "signal", {}),
    "audit a policy": (("audit", "--policy", "theirs"), "policy", {}),
    "audit what is in force": (("audit", "--toys", 1), "signal", {"ADAVERIFY_PLANNER_SIGNAL": "theirs"}),
    "run with a policy": (("run", "--device", "cpu"), "policy", {"ADAVERIFY_PLANNER_POLICY": "theirs"}),
}


@pytest.mark.parametrize(("plugin", "reason"), CAUSES.values(), ids=CAUSES)
@pytest.mark.parametrize(("command", "kind", "variables"), ASKED.values(), ids=ASKED)
def test_a_name_of_a_plugin_that_is_not_used_says_why(
    tiny, invoke, monkeypatch, plugin, reason, command, kind, variables
):
    """``run`` used the model and the drafter, and the others said that nothing had such a name."""
    monkeypatch.setenv("ADAVERIFY_DEVICE_NAME", "cpu")
    tiny(plugin, load=never, geometry=TinyModel().geometry)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = invoke(*command)
    assert (result.exit_code, result.stdout) == (3, ""), result.stderr
    text = " ".join(result.stderr.split())
    assert f"no {kind} is named 'theirs'" in text
    assert f"plugin extra-1 was not loaded {reason}" in text


def test_simulate_uses_nothing_of_it(install, invoke, monkeypatch, priced_file):
    install(Elsewhere())
    monkeypatch.setenv("ADAVERIFY_DEVICE_NAME", "cpu")
    monkeypatch.setenv("ADAVERIFY_PLANNER_SIGNAL", "theirs")
    result = invoke("simulate", "--table", priced_file, *PRICES)
    assert (result.exit_code, result.stdout) == (3, "")
    text = " ".join(result.stderr.split())
    assert "no signal is named 'theirs'; plugin extra-0 was not loaded (requirement unmet)" in text


def test_wrong_requirements_end_the_list_like_any_contract_break(install, invoke):
    """The list ended with 0, and other commands started."""
    broken = Theirs()
    broken.ADAVERIFY_REQUIRES = 5
    install(broken)
    for command in (("plugins",), ("doctor", "--device", "cpu")):
        result = invoke(*command)
        assert result.exit_code == 3
        assert "ADAVERIFY_REQUIRES is not a Requirements" in " ".join(result.stderr.split())


class Obstacles:
    """Registers a drafter that fails when it is asked, made for ``target``."""

    def __init__(self, target=None):
        self.target = target

    @hookimpl
    def adaverify_register_drafters(self):
        one = DrafterDescriptor(
            "broken", Seen.HISTORY, True, never, target=self.target, obstacle=lambda k: 1 // 0
        )
        return (one,)


BROKEN = "drafter 'broken' of plugin 'extra-1': obstacle raised ZeroDivisionError"


def test_a_drafter_that_fails_when_it_is_asked_is_refused_by_name(tiny, run_tiny):
    """It was a fault of adaverify, with a traceback."""
    tiny(Obstacles())
    result = run_tiny("--drafter", "broken", "--json")
    assert (result.exit_code, result.stdout) == (3, "")
    assert f"PluginError: {BROKEN}" in " ".join(result.stderr.split())


@pytest.mark.parametrize("target", [None, TinyModel().geometry.name])
def test_the_other_drafters_serve_beside_it(tiny, run_tiny, target):
    """Made for the model and named by nobody, it is replaced with its reason; otherwise nobody asks it."""
    tiny(Obstacles(target))
    result = run_tiny("--no-measure", "--mode", "fixed", "--mode", "none", "--json")
    assert result.exit_code == 0, result.stderr
    text = " ".join(result.stderr.split())
    assert (f"drafter broken is not used, {BROKEN}" in text) == (target is not None)


def test_doctor_and_plugins_tell_of_it(tiny, invoke):
    tiny(Obstacles())
    shown = invoke("doctor", "--device", "cpu")
    assert shown.exit_code == 0
    assert f"warning: {BROKEN}" in " ".join(shown.stdout.split())
    listed = invoke("plugins")
    assert listed.exit_code == 0
    assert BROKEN in " ".join(listed.stderr.split())


def test_a_typed_error_of_an_obstacle_is_a_reason_too():
    drafters = {
        "n-gram": DrafterDescriptor("n-gram", Seen.HISTORY, True, NgramDrafter),
        "own": contained_as("p", Obstacles("m").adaverify_register_drafters()[0]),
    }
    chosen = choose_drafting((), drafters, "m", 7)
    assert chosen.first.name == "n-gram"
    assert "drafter broken is not used, drafter 'broken' of plugin 'p': obstacle raised" in chosen.fallback
    with pytest.raises(PluginError):
        choose_drafting(("own",), drafters, "m", 7)


class Bad:
    """Registers a signal and a policy whose factories fail, beside a policy that works."""

    @hookimpl
    def adaverify_register_signals(self):
        return (SignalDescriptor("bad", Seen.HISTORY, True, lambda *arguments: 1 // 0),)

    @hookimpl
    def adaverify_register_policies(self):
        return (PolicyDescriptor("worse", BudgetReads.HISTORY, lambda: None),)


def test_an_audit_goes_on_behind_what_cannot_run(tiny, invoke):
    """One that nobody uses ended it, with nothing audited."""
    tiny(Bad())
    result = invoke("audit", "--toys", 1, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["passed"] is True
    failed = {(one["signal"], one["policy"]) for one in report["failed"]}
    done = {(one["signal"], one["policy"]) for one in report["pairs"]}
    assert failed == {pair for pair in failed | done if "bad" in pair or "worse" in pair}
    assert ("bad", "ratio") in failed and ("calibrated", "worse") in failed
    assert ("calibrated", "ratio") in done
    text = " ".join(result.stderr.split())
    assert "not audited: bad with" in text and "bad with ratio" in text
    assert "signal 'bad' of plugin 'extra-1': factory raised ZeroDivisionError" in text
    assert f"not audited in all: {len(failed)} of {len(failed | done)} pairs" in text


@pytest.mark.parametrize(
    ("asked", "variables", "code"),
    [
        (("--signal", "bad"), {}, 3),
        (("--signal", "bad", "--signal", "calibrated"), {}, 3),
        (("--policy", "worse"), {}, 3),
        (("--signal", "calibrated"), {}, 0),
        (("--signal", "calibrated", "--policy", "ratio"), {"ADAVERIFY_PLANNER_SIGNAL": "bad"}, 0),
        (("--policy", "ratio"), {"ADAVERIFY_PLANNER_SIGNAL": "bad"}, 3),
    ],
)
def test_only_what_was_asked_for_ends_an_audit_with_an_error(
    tiny, invoke, monkeypatch, asked, variables, code
):
    """Named, or in force where nothing of its kind is named; the rest is shown first all the same."""
    tiny(Bad())
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = invoke("audit", "--toys", 1, *asked, "--json")
    assert result.exit_code == code, result.stderr
    assert json.loads(result.stdout)["passed"] is (code == 0)
    assert ("PluginError: " in result.stderr) == (code == 3)


@pytest.mark.parametrize("variable", ["COST_TABLE", "CALIBRATION", "TRACE"])
def test_the_doctor_judges_the_files_that_settings_name(tiny, invoke, monkeypatch, tmp_path, variable):
    """It promised a verifier, and ``run`` refused the file."""
    name = f"ADAVERIFY_PATHS_{variable}"
    monkeypatch.setenv(name, str(tmp_path / "no" / "such-file"))
    result = invoke("doctor", "--device", "cpu", "--json")
    assert result.exit_code == 1
    (problem,) = json.loads(result.stdout)["problems"]
    assert name in problem and "such-file" in problem


def test_files_that_serve_are_no_problem(tiny, invoke, monkeypatch, tmp_path, priced_file):
    """A trace that is not there yet can be made, and is not left behind."""
    monkeypatch.setenv("ADAVERIFY_PATHS_COST_TABLE", str(priced_file))
    monkeypatch.setenv("ADAVERIFY_PATHS_TRACE", str(tmp_path / "trace.jsonl"))
    result = invoke("doctor", "--device", "cpu", "--json")
    assert result.exit_code == 0, result.stdout
    assert not (tmp_path / "trace.jsonl").exists()
