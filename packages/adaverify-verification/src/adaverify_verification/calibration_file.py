"""What a signal learnt, as a JSON file that outlives the process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from adaverify_contracts import CalibrationError
from adaverify_verification.json_file import read_json, write_whole

FORMAT = 1


def envelope(signal: str, fingerprint: str, draft_tokens: int, learnt: dict[str, Any]) -> dict[str, Any]:
    """Return ``learnt`` with the names that decide whether another process may use it."""
    return {
        "format": FORMAT,
        "signal": signal,
        "fingerprint": fingerprint,
        "draft_tokens": draft_tokens,
        "learnt": learnt,
    }


def learnt_of(state: object, signal: str, fingerprint: str, draft_tokens: int) -> dict[str, Any]:
    """Return the learnt part of an envelope made for this signal, fingerprint and K.

    Raises:
        CalibrationError: it is no envelope, or a field differs; the message names every field with both
            values.
    """
    if not isinstance(state, dict) or not isinstance(state.get("learnt"), dict):
        raise CalibrationError(
            "saved calibration is malformed",
            arrived=type(state).__name__,
            allowed="an object with format, signal, fingerprint, draft_tokens and learnt",
            remedy="delete the file; the signal calibrates itself again",
        )
    expected = envelope(signal, fingerprint, draft_tokens, {})
    del expected["learnt"]
    differences = {
        name: (state.get(name), here) for name, here in expected.items() if state.get(name) != here
    }
    if differences:
        listing = "; ".join(
            f"{name}: saved {was!r}, here {here!r}" for name, (was, here) in differences.items()
        )
        raise CalibrationError(
            f"saved calibration belongs to another setup ({listing})",
            arrived=tuple(differences),
            allowed="calibration saved under the same signal, fingerprint and K",
            remedy="delete the file, or start with the setup it was saved for",
        )
    learnt: dict[str, Any] = state["learnt"]
    return learnt


def calibration_subject(target: str, drafter: str) -> str:
    """Return the fingerprint of a calibration: scores mean something for one target and drafter only."""
    return f"target {target}, drafter {drafter}"


def subject_names(fingerprint: str) -> tuple[str, str]:
    """Return the target and the drafter of ``calibration_subject``; of another text, parts of it."""
    target, _, drafter = fingerprint.removeprefix("target ").partition(", drafter ")
    return target, drafter


def signal_of(state: object, otherwise: str) -> str:
    """Return the name of the signal that saved ``state``; ``otherwise`` for whatever has no such name."""
    named = state.get("signal") if isinstance(state, dict) and "learnt" in state else None
    return named if isinstance(named, str) else otherwise


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write what ``export_state`` returned; the file is replaced as a whole or not at all."""
    write_whole(path, json.dumps(state, allow_nan=False, indent=1, sort_keys=True) + "\n")


def load_state(path: Path) -> object:
    """Read a file written by ``save_state``, to be passed to ``import_state``.

    Raises:
        CalibrationError: the file cannot be read or is not JSON.
    """
    try:
        return read_json(path)
    except (OSError, ValueError) as cause:
        raise CalibrationError(
            f"saved calibration cannot be read: {type(cause).__name__}: {cause}",
            arrived=str(path),
            allowed="a readable JSON file: what save_state wrote, or another engine's temperatures",
            remedy="check the path, or do without the file; the signal calibrates itself",
        ) from cause
