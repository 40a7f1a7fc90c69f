"""A calibration that cannot serve costs neither the loading of a model nor the measuring of step times."""

from __future__ import annotations

import json

import pytest

from adaverify import session
from adaverify_verification import calibration_file, calibration_subject


def never(*arguments, **named):
    raise AssertionError("the command went on although the calibration cannot serve")


def saved(**changes):
    """What `adaverify calibrate` writes for K = 3, with changes."""
    kept = {"temperatures": [1.0, 1.0, 1.0], "positives": [9] * 3, "negatives": [9] * 3}
    subject = calibration_subject("tiny", "n-gram")
    whole = calibration_file.envelope("temperature-scaled", subject, 3, {"greedy": kept, "sampled": kept})
    return json.dumps({**whole, **changes})


UNREADABLE = {
    "absent": None,
    "empty": b"",
    "binary": b"\x00\xff\xfe",
    "cut": b'{"signal": "temperature-scaled", "lear',
    "deep": b"[" * 100_000,
}
UNFIT = {
    "a number": ("5", "no list of numbers"),
    "nothing": ("null", "malformed"),
    "of K = 7": (saved(draft_tokens=7), "saved 7, here 3"),
    "two temperatures": ("[1.0, 1.0]", "2 temperatures were given for K = 3"),
    "of a later format": (saved(format=9), "saved 9, here 1"),
    "without what was learnt": (saved(learnt=[]), "malformed"),
    "learnt is nonsense": (saved(learnt={"greedy": 5}), "calibration"),
    "of no drafter": (saved(fingerprint=None), "saved None"),
    "of another drafter": (
        saved(fingerprint="target tiny, drafter other"),
        "here 'target tiny, drafter n-gram'",
    ),
    "of an unknown signal": (saved(signal="crystal-ball"), "no signal is named 'crystal-ball'"),
}


@pytest.fixture
def refused(invoke, tmp_path):
    """Return a function that runs a command with a calibration and hands back what it refused with."""

    def run(command, content, *arguments):
        path = tmp_path / "calibration.json"
        if content is not None:
            path.write_bytes(content)
        sizes = ("--draft-tokens", 3, "--calibration", path)
        result = invoke(command, *sizes, *arguments)
        assert (result.exit_code, result.stdout) == (3, ""), result.stderr
        said = " ".join(result.stderr.split())
        assert "calibration.json" in said
        assert "to do:" in said
        return said

    return run


@pytest.mark.parametrize("command", ["run", "profile"])
@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_read_is_refused_before_the_model(tiny, refused, command, name):
    tiny(load=never)
    assert "cannot be read" in refused(command, UNREADABLE[name])


@pytest.mark.parametrize("name", UNFIT)
def test_a_file_of_something_else_is_refused_before_the_model(tiny, refused, name):
    """Of another K or schema, or of another drafter than the named one."""
    tiny(load=never)
    content, words = UNFIT[name]
    assert words in refused("run", content.encode(), "--drafter", "n-gram")


@pytest.mark.parametrize("command", ["run", "profile"])
@pytest.mark.parametrize("subject", ["target tiny, drafter other", "target other, drafter n-gram"])
def test_a_file_of_another_target_or_drafter_is_refused_before_anything_is_measured(
    tiny, refused, monkeypatch, command, subject
):
    """Which target it is, and so which drafter, is known when the model is there."""
    for name in ("measure_table", "check_stored"):
        monkeypatch.setattr(session, name, never)
    monkeypatch.setattr(session.Session, "uncaptured", never)
    said = refused(command, saved(fingerprint=subject).encode(), "--dtype", "float32")
    assert f"saved {subject!r}, here 'target tiny, drafter n-gram'" in said
