"""What a run has measured so far, in one file: written after every case, so that a cut-off run goes on."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from adaverify_contracts import AdaverifyError
from adaverify_verification.json_file import write_whole

FORMAT = "adaverify-endtoend"
VERSION = 3
"""1 had one arm of the published arrangement, called baseline, and took the model of one arm from all; 2 did
not say by which planner settings and row costs its arms had planned."""


class Store:
    """Results by stage and case. Runs that share a file keep each other's cases.

    Args:
        path: the file; made when the first case is kept.
        identity: what all cases of a file have in common, JSON-ready.

    Raises:
        AdaverifyError: the file is no such file, or its cases were measured on something else.
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self._path = path
        self._value: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "identity": json.loads(json.dumps(identity)),
            "stages": {},
        }
        self._read()

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def get(self, stage: str, case: str) -> dict[str, Any] | None:
        """Return what was measured, None when it was not."""
        found: dict[str, Any] | None = self._value["stages"].get(stage, {}).get(case)
        return found

    def stage(self, stage: str) -> dict[str, dict[str, Any]]:
        """Return all cases of a stage."""
        found: dict[str, dict[str, Any]] = self._value["stages"].get(stage, {})
        return found

    def keep(self, stage: str, case: str, value: dict[str, Any]) -> None:
        """Keep a case and write the file, beside what another run has kept there since.

        Readers see the old file or the new one.

        Raises:
            AdaverifyError: the file has become one that cannot be continued.
        """
        text = json.dumps(value, allow_nan=False)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._alone():
            self._read()
            self._value["stages"].setdefault(stage, {})[case] = json.loads(text)
            write_whole(self._path, json.dumps(self._value, indent=1, allow_nan=False) + "\n")

    def as_dict(self) -> dict[str, Any]:
        """Return everything, JSON-ready."""
        return self._value

    def refused(self, arrived: str) -> AdaverifyError:
        """Return the error for a file that cannot be continued."""
        common = ", ".join(self._value["identity"]) or "setup"
        return AdaverifyError(
            f"the results in {self._path} cannot be continued",
            arrived=arrived,
            allowed=f"a regular file {FORMAT} of version {VERSION}, of the same {common}",
            remedy="choose another folder with --out, or remove the file",
        )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        # The file itself is replaced, so the folder is locked.
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _read(self) -> None:
        """Take over the cases of the file, where there is one."""
        if not self._path.exists() and not self._path.is_symlink():
            return
        if not self._path.is_file():
            raise self.refused("a folder, a device, a pipe or a link to nothing")
        try:
            value = json.loads(self._path.read_text(encoding="utf-8"), parse_constant=_no_constant)
            found = (value["format"], value["version"])
            theirs, stages = value["identity"], value["stages"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise self.refused(f"{type(error).__name__}: {error}") from error
        if found != (FORMAT, VERSION):
            raise self.refused(f"{found[0]!r} of version {found[1]!r}")
        if not isinstance(theirs, dict) or not isinstance(stages, dict):
            raise self.refused("an identity or stages that are no objects")
        mine = self._value["identity"]
        other = [name for name in mine if theirs.get(name) != mine[name]]
        if other:
            words = "; ".join(f"{name} {theirs.get(name)!r}, now {mine[name]!r}" for name in other)
            raise self.refused(f"measured with {words}")
        for stage, cases in stages.items():
            if not _are_cases(cases):
                raise self.refused(f"stage {stage!r} that holds no cases")
        for case, one in stages.get("curve", {}).items():
            if not _is_curve(one.get("points")):
                raise self.refused(f"a curve of {case} requests without positive times at rising tokens")
        self._value["stages"] = stages


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no figure")


def _are_cases(cases: Any) -> bool:
    return isinstance(cases, dict) and all(isinstance(one, dict) and one for one in cases.values())


def _is_curve(points: Any) -> bool:
    """Return whether these are the points of a curve: what all later stages plan by."""
    if not isinstance(points, list) or not points:
        return False
    if not all(isinstance(point, dict) for point in points):
        return False
    tokens = [point.get("tokens") for point in points]
    seconds = [point.get("seconds") for point in points]
    if not all(isinstance(count, int) and not isinstance(count, bool) and count > 0 for count in tokens):
        return False
    if not all(isinstance(time, float) and math.isfinite(time) and time > 0 for time in seconds):
        return False
    return tokens == sorted(set(tokens))
