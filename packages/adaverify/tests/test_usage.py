"""What is judged while the command line is parsed: code 2, with the option's name."""

from __future__ import annotations

import math

import pytest
import typer

from adaverify import usage
from adaverify_contracts import EngineError
from adaverify_engine import Sampling


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--prompts"),
        ("run", "--calibration"),
        ("run", "--trace"),
        ("profile", "--plot"),
        ("profile", "--table"),
        ("calibrate", "--prompts"),
        ("calibrate", "--record"),
        ("calibrate", "--output"),
        ("calibrate",),
        ("report",),
        ("plugins", "new", "cedar", "--into"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("name", ["", "x" * 300, "a\0b"], ids=["empty", "long", "nul"])
def test_what_is_no_path_is_wrong_usage_in_every_command(tiny, invoke, arguments, name):
    """An empty one was the current folder, a long one a traceback."""
    result = invoke(*arguments, name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr
    said = " ".join(result.stderr.replace("\u2502", "").split())
    assert "names nothing" in said or "is no path" in said


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        ("run", "--seed", 2**63),
        ("calibrate", "--seed", 10**30),
        ("audit", "--seed", 2**63),
        ("run", "--draft-tokens", 65537),
        ("profile", "--draft-tokens", 10**30),
        ("calibrate", "--temperature", "inf"),
        ("run", "--temperature", "nan"),
        ("run", "--temperature", "-1"),
        ("run", "--temperature", "1e-9"),
        ("record", "--temperature", "1e7"),
    ],
)
def test_numbers_beyond_what_the_settings_take_are_wrong_usage(tiny, invoke, command, option, value):
    """The name that was typed is in the message, not a field of some class."""
    result = invoke(command, option, value)
    assert (result.exit_code, result.stdout) == (2, "")
    assert option in result.stderr


@pytest.mark.parametrize("command", [("run",), ("profile",), ("doctor",), ("calibrate",)], ids=" ".join)
def test_an_empty_device_is_no_device(tiny, invoke, command):
    """A script whose variable was empty examined whatever was there."""
    result = invoke(*command, "--device", "")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "there is no device '' here" in result.stderr


def test_a_run_without_drafts_is_not_told_to_leave_out_a_trace(tiny, invoke, tmp_path):
    (tmp_path / "p.txt").write_text("abc\n", encoding="utf-8")
    sizes = ("--prompts", "p.txt", "--tokens", 4, "--draft-tokens", 0, "--dtype", "float32")
    result = invoke("calibrate", *sizes)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "--draft-tokens of 1 or more" in result.stderr
    assert "leave out the trace" not in result.stderr


def test_temperatures_are_those_of_the_engine():
    """What the option lets pass, the engine takes; what it refuses, the engine refuses."""
    for value in (0.0, usage.COLDEST, usage.HOTTEST):
        assert Sampling(temperature=usage.finite_temperature(value)).temperature == value
    for value in (usage.COLDEST / 2, usage.HOTTEST * 2, -1.0, math.nan):
        with pytest.raises(typer.BadParameter):
            usage.finite_temperature(value)
        with pytest.raises(EngineError):
            Sampling(temperature=value)
