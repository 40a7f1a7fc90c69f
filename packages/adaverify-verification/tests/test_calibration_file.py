"""Files of what a signal learnt."""

from __future__ import annotations

import pytest

from adaverify_contracts import CalibrationError
from adaverify_verification.calibration_file import envelope, learnt_of, load_state, save_state


def test_round_trip_is_exact(tmp_path):
    """Floats come back bit for bit."""
    state = envelope("calibrated", "f", 2, {"slope": 0.1 + 0.2, "tiny": 5e-324})
    save_state(tmp_path / "a.json", state)
    assert load_state(tmp_path / "a.json") == state
    assert learnt_of(state, "calibrated", "f", 2) == state["learnt"]


def test_unreadable_files_are_named(tmp_path):
    """Missing, cut short and not text: one typed error with the path."""
    (tmp_path / "cut.json").write_text('{"format": 1,')
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    for name in ("missing.json", "cut.json", "bytes.json"):
        with pytest.raises(CalibrationError, match=name):
            load_state(tmp_path / name)


@pytest.mark.parametrize("state", [None, [], {}, {"learnt": 3}])
def test_anything_else_is_malformed(state):
    """Valid JSON that is no envelope is refused."""
    with pytest.raises(CalibrationError, match="malformed"):
        learnt_of(state, "calibrated", "f", 2)


def test_all_differences_are_named_at_once():
    """Fingerprint and K differ: both are in the message, with both values."""
    state = envelope("calibrated", "f", 2, {})
    with pytest.raises(
        CalibrationError, match="fingerprint: saved 'f', here 'g'; draft_tokens: saved 2, here 3"
    ):
        learnt_of(state, "calibrated", "g", 3)
