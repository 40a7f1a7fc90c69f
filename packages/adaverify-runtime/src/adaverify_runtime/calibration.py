"""A calibration file at start: which signal it is of, and handing it to that signal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from adaverify_contracts import CalibrationError, DrafterDescriptor, Signal
from adaverify_runtime.settings import Settings
from adaverify_verification import TEMPERATURE_SCALED, calibration_subject, load_state, signal_of


@runtime_checkable
class Calibratable(Protocol):
    """A signal that can start from what another process learnt."""

    def import_state(self, state: object, fingerprint: str) -> None:
        """Take over a parsed file, or raise ``CalibrationError``."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """A parsed calibration file.

    Attributes:
        path: where it came from.
        signal: name of the signal that it is of; that of temperatures where the file names none.
        state: its JSON value.
    """

    path: Path
    signal: str
    state: object


def read_calibration(path: Path) -> Calibration:
    """Return a calibration file, parsed and not yet judged.

    Raises:
        CalibrationError: the file cannot be read or is not JSON.
    """
    state = load_state(path)
    return Calibration(path, signal_of(state, TEMPERATURE_SCALED.name), state)


def settings_for(settings: Settings, calibration: Calibration | None) -> Settings:
    """Return settings whose signal is the one the file is of.

    Raises:
        CalibrationError: the user has named another signal.
    """
    if calibration is None or settings.planner.signal == calibration.signal:
        return settings
    if "signal" in settings.planner.model_fields_set:
        raise CalibrationError(
            f"the calibration file is of signal {calibration.signal!r}, and another one was chosen",
            arrived=settings.planner.signal,
            allowed=calibration.signal,
            remedy="unset ADAVERIFY_PLANNER_SIGNAL, or do without the calibration file",
        )
    planner = settings.planner.model_copy(update={"signal": calibration.signal})
    return replace(settings, planner=planner)


def calibrate(
    signal: Signal, calibration: Calibration, target: str | None, drafter: DrafterDescriptor | None
) -> str:
    """Hand the file to the signal; return a note for the start-up report.

    Raises:
        CalibrationError: the signal takes none, or the file does not fit it; names the file.
    """
    if not isinstance(signal, Calibratable):
        raise CalibrationError(
            f"signal {calibration.signal!r} takes no calibration file",
            arrived=str(calibration.path),
            allowed="a signal with import_state",
            remedy="do without the calibration file, or choose another signal",
        )
    named = calibration_subject(target or "not named", "not named" if drafter is None else drafter.name)
    try:
        signal.import_state(calibration.state, named)
    except CalibrationError as error:
        raise CalibrationError(
            f"calibration file {calibration.path}: {error.problem}",
            arrived=error.arrived,
            allowed=error.allowed,
            remedy=error.remedy,
        ) from error
    return f"calibration: {calibration.path}, for signal {calibration.signal}"
