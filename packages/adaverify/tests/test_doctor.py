"""``adaverify doctor`` and ``plugins``: everything that is there, chosen or not, with every reason."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint

import pytest

from adaverify import session
from adaverify_contracts import DecodeStrategyDescriptor, GraphSupport, Requirements, hookimpl
from adaverify_runtime import load_plugins

BUILT_INS = ("capability", "engine", "graphs", "reference", "verification")


def nothing(*_):
    raise AssertionError("the doctor allocates nothing")


class Picky:
    """A strategy with three unmet requirements at once, one of them spelt like markup."""

    @hookimpl
    def adaverify_register_decode_strategies(self):
        needs = Requirements(device_types=("cuda",), kernels=("warp-drive",), modules=("no_such[module]",))
        return (
            DecodeStrategyDescriptor(
                "picky", needs, GraphSupport.VARLEN_DECODE, True, 9, "executed", nothing
            ),
        )


def test_the_doctor_shows_facts_kernels_plugins_and_strategies(tiny, invoke):
    """One page in 80 columns, and what would be chosen."""
    result = invoke("doctor", "--device", "cpu")
    assert result.exit_code == 0, result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 80
    for title in (
        "Device",
        "Kernels",
        "Plugins",
        "Decode strategies",
        "Graph backends",
        "Signals",
        "Policies",
    ):
        assert f"\n{title}" in f"\n{result.stdout}"
    assert "A verifier can be assembled here in mode adaptive." in result.stdout


def test_all_reasons_at_once_and_none_of_them_is_read_as_markup(tiny, invoke):
    """A strategy that is not chosen lists every reason; brackets in a reason survive the terminal."""
    tiny(Picky())
    report = json.loads(invoke("doctor", "--device", "cpu", "--json").stdout)
    (picky,) = [item for item in report["strategies"] if item["name"] == "picky"]
    assert not picky["chosen"]
    assert len(picky["reasons"]) == 3
    text = "".join(invoke("doctor", "--device", "cpu").stdout.split())
    assert "warp-drive" in text
    assert "no_such[module]" in text


@pytest.mark.parametrize("word", ["cpu", "sm90", "sm100", "sm120", "gfx950"])
def test_another_device_can_be_assumed(tiny, invoke, word):
    """Nothing is probed, the report says so, and the reference serves everywhere."""
    result = invoke("doctor", "--assume", word, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["capability"]["architecture"] == word
    assert report["capability"]["assumed"]
    assert {item["name"] for item in report["strategies"] if item["chosen"]} == {"reference", "uniform"}
    shown = invoke("doctor", "--assume", word)
    assert shown.exit_code == 0
    # Nothing was proven by assuming it.
    assert "can be assembled here" not in shown.stdout
    assert f"assumed, {word}, mode adaptive would run" in " ".join(shown.stdout.split())


def test_kernels_can_be_assumed_with_the_device(tiny, invoke):
    """The requirement that a kernel was executed is then met; without --assume it is wrong usage."""
    tiny(Picky())
    arguments = ("doctor", "--assume", "sm90", "--kernel", "warp-drive", "--json")
    report = json.loads(invoke(*arguments).stdout)
    (picky,) = [item for item in report["strategies"] if item["name"] == "picky"]
    assert picky["reasons"] == [reason for reason in picky["reasons"] if "no_such[module]" in reason]
    assert invoke("doctor", "--kernel", "x").exit_code == 2


def test_a_kernel_that_nothing_knows_is_refused(tiny, invoke):
    """Assuming a misspelt one would change nothing, in silence; those of probes and strategies are listed."""
    tiny(Picky())
    result = invoke("doctor", "--assume", "sm90", "--kernel", "warpdrive")
    assert result.exit_code == 3
    assert "no kernel is named 'warpdrive'" in result.stderr
    assert "triton" in result.stderr
    assert "warp-drive" in result.stderr


def test_an_unknown_architecture_lists_the_table(tiny, invoke):
    """A neighbour's name is not taken for the family."""
    result = invoke("doctor", "--assume", "sm12")
    assert result.exit_code == 3
    assert "no architecture is named 'sm12'" in result.stderr
    assert "sm120" in result.stderr


def test_a_machine_without_any_strategy_is_code_1(install, invoke, monkeypatch):
    """The report is complete all the same, and says what is missing."""
    monkeypatch.setenv("ADAVERIFY_DEVICE_STRATEGY", "ghost")
    install()
    result = invoke("doctor", "--device", "cpu")
    assert result.exit_code == 1
    assert "problem: " in result.stdout
    assert "ghost" in result.stdout
    assert json.loads(invoke("doctor", "--device", "cpu", "--json").stdout)["problems"]


@pytest.mark.parametrize("command", ["doctor", "plugins"])
def test_a_device_of_the_settings_is_checked_too(tiny, invoke, monkeypatch, command):
    """ADAVERIFY_DEVICE_NAME is no way around the check."""
    monkeypatch.setenv("ADAVERIFY_DEVICE_NAME", "abacus")
    result = invoke(command)
    assert result.exit_code == 3
    assert "there is no device 'abacus' here" in result.stderr


def test_unknown_variables_are_warned_about_with_the_nearest(tiny, invoke, monkeypatch):
    """A misspelt variable would otherwise be ignored in silence."""
    monkeypatch.setenv("ADAVERIFY_PLANER_MODE", "fixed")
    text = " ".join(invoke("doctor", "--device", "cpu").stdout.split())
    assert "ADAVERIFY_PLANER_MODE is set and no setting reads it" in text
    assert "ADAVERIFY_PLANNER_MODE" in text


def test_plugins_lists_outcomes_reasons_and_what_was_registered(tiny, invoke):
    """Loaded and failed, named by entry point and distribution."""
    tiny(Picky(), ImportError("no libcuda"))
    rows = {row["name"]: row for row in json.loads(invoke("plugins", "--json").stdout)}
    assert rows["extra-1"]["registered"] == {"strategies": ["picky"]}
    assert rows["verification"]["registered"]["policies"] == ["ratio", "price"]
    assert rows["extra-2"]["outcome"] == "import failed"
    assert "no libcuda" in rows["extra-2"]["reason"]
    shown = invoke("plugins")
    assert shown.exit_code == 0
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "no libcuda" in " ".join(shown.stdout.split())


HARDWARE = ("sm90_flatten", "sm100_varlen", "rocm_flatten", "sm120_flatten")
NEIGHBOURS = {"sm107": "no proof", "sm120": "open fault reports", "sm121": "open fault reports"}


@pytest.mark.parametrize(
    ("word", "chosen"),
    [
        ("sm100", {"varlen", "uniform-varlen"}),
        ("sm103", {"varlen", "uniform-varlen"}),
        ("sm90", {"flatten", "uniform-native"}),
        *(
            (word, {"reference", "uniform"})
            for word in ("gfx950", "gfx942", "sm120", "sm121", "sm107", "cpu")
        ),
    ],
)
def test_every_hardware_plugin_is_chosen_or_says_why_not(monkeypatch, invoke, word, chosen):
    """On any machine; opt-in strategies are never chosen, and a neighbour is told why in a sentence."""
    names = (*BUILT_INS, *HARDWARE)
    points = [EntryPoint(name, f"adaverify_{name}.hooks", "adaverify") for name in names]
    monkeypatch.setattr(session, "load_plugins", lambda settings: load_plugins(settings, points))
    arguments = ("doctor", "--assume", word, *(() if word == "cpu" else ("--kernel", "triton")))
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    strategies = {item["name"]: item for item in json.loads(result.stdout)["strategies"]}
    assert {name for name, item in strategies.items() if item["chosen"]} == chosen
    why = " ".join(strategies["varlen"]["reasons"])
    assert bool(why) == ("varlen" not in chosen)
    if why:
        assert f"architecture is {word}, needs sm100 or sm103" in why
    assert NEIGHBOURS.get(word, "") in why
    evidence = {name: item["evidence"] for name, item in strategies.items()}
    assert (evidence["varlen"], evidence["flatten-rocm"], evidence["flatten-sm120"]) == (
        "emulated",
        "compiled",
        "compiled",
    )
    shown = " ".join(invoke(*arguments).stdout.split())
    assert f"assumed, {word}, mode adaptive would run" in shown
