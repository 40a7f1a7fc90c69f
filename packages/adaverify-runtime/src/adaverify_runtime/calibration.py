"""A calibration file at start: which signal it is of, and handing it to that signal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from adaverify_contracts import CalibrationError, DrafterDescriptor, Limits, Signal, UnknownNameError
from adaverify_runtime.making import contained
from adaverify_runtime.plugins import PluginManager, pick
from adaverify_runtime.settings import Settings
from adaverify_verification import (
    TEMPERATURE_SCALED,
    calibration_subject,
    load_state,
    signal_of,
    subject_names,
)


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
        CalibrationError: the file cannot be read, is not JSON or holds nothing.
    """
    state = load_state(path)
    if state is None:
        # No state at all is what a signal has without a file: it would start from nothing, unsaid.
        raise CalibrationError(
            f"calibration file {path}: saved calibration is malformed",
            arrived="null",
            allowed="what `adaverify calibrate` wrote, or another engine's temperatures",
            remedy="check the path, or do without the file",
        )
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
    named = calibration_subject(target or "not named", "not named" if drafter is None else drafter.name)
    _import(signal, calibration, named)
    return f"calibration: {calibration.path}, for signal {calibration.signal}"


def check_calibration(
    settings: Settings,
    plugins: PluginManager,
    limits: Limits,
    target: str | None = None,
    drafter: str | None = None,
) -> Settings:
    """Return settings whose signal is the one that their calibration file is of; load no model.

    A signal of its own, on the CPU, takes the file as ``assemble`` will have one do. What the file names is
    not judged where the caller does not know it yet.

    Args:
        settings: name the file; without one there is nothing to check.
        plugins: have the signal.
        limits: K is what the file must be of.
        target: the target model's name, None before it is loaded.
        drafter: the drafter's name, None before it is chosen.

    Raises:
        CalibrationError: the file cannot be read, is malformed or of another signal, K, target or drafter.
        UnknownNameError: it names a signal that nothing registered.
    """
    if settings.paths.calibration is None:
        return settings
    found = read_calibration(settings.paths.calibration)
    settings = settings_for(settings, found)
    try:
        descriptor = contained(
            pick(plugins.signals(), "signal", settings.planner.signal, plugins.not_loaded())
        )
    except UnknownNameError as error:
        raise error.within(f"calibration file {found.path}") from error
    own = found.state.get("fingerprint") if isinstance(found.state, dict) else None
    was_target, was_drafter = subject_names(own) if isinstance(own, str) else ("", "")
    named = calibration_subject(target or was_target, drafter or was_drafter)
    _import(descriptor.factory(replace(limits, max_requests=1), torch.device("cpu")), found, named)
    return settings


def _import(signal: Signal, calibration: Calibration, named: str) -> None:
    if not isinstance(signal, Calibratable):
        raise CalibrationError(
            f"signal {calibration.signal!r} takes no calibration file",
            arrived=str(calibration.path),
            allowed="a signal with import_state",
            remedy="do without the calibration file, or choose another signal",
        )
    try:
        signal.import_state(calibration.state, named)
    except CalibrationError as error:
        raise error.within(f"calibration file {calibration.path}") from error
