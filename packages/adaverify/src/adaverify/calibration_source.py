"""Whose calibration file it is: an option's, or a setting's, which its errors then name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adaverify_contracts import CalibrationError, UnknownNameError

_VARIABLE = "ADAVERIFY_PATHS_CALIBRATION"


@contextmanager
def naming_setting(option: Path | None) -> Iterator[None]:
    """Name the setting in an error of the calibration file, where no ``option`` named the file."""
    try:
        yield
    except (CalibrationError, UnknownNameError) as error:
        if option is not None:
            raise
        raise error.within(_VARIABLE, f"set {_VARIABLE} to another file, or unset it") from error
