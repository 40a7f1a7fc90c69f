"""What a run has measured so far, in one file: written after every case, so that a cut-off run goes on."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from adaverify.bench.endtoend.kept_check import fault_in
from adaverify_contracts import AdaverifyError
from adaverify_verification.json_file import write_whole

FORMAT = "adaverify-endtoend"
VERSION = 3
"""1 had one arm of the published arrangement, called baseline, and took the model of one arm from all; 2 did
not say by which planner settings and row costs its arms had planned."""


class NotKeptError(AdaverifyError):
    """A case was measured and could not be written: others would fare no better."""


class Store:
    """Results by stage and case. Runs that share a file keep each other's cases.

    Args:
        path: the file; made when the first case is kept.
        identity: what all cases of a file have in common, JSON-ready.
        shown_only: nothing will be kept. A file that does not say all of its identity, as earlier versions
            wrote it, is then shown as what it says.

    Raises:
        AdaverifyError: the file is no such file, or its cases were measured on something else.
    """

    def __init__(self, path: Path, identity: dict[str, Any], *, shown_only: bool = False) -> None:
        self._path, self._shown_only = path, shown_only
        self.unrecorded: tuple[str, ...] = ()
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
            NotKeptError: the file cannot be written, for instance because the disk is full.
            AdaverifyError: the file has become one that cannot be continued.
        """
        kept = json.loads(json.dumps(value, allow_nan=False))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._alone():
                self._read()
                cases = self._value["stages"].get(stage, {}) | {case: kept}
                after = self._value | {"stages": self._value["stages"] | {stage: cases}}
                write_whole(self._path, json.dumps(after, indent=1, allow_nan=False) + "\n")
        except OSError as error:
            raise NotKeptError(
                f"{stage} {case} was measured and cannot be kept: {error.strerror}",
                arrived=str(self._path),
                allowed="a file that can be written; what was kept before is there",
                remedy="make room on its disk, or let the folder be written to, and run this again",
            ) from error
        self._value = after

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
        value = self._parsed()
        theirs = value.get("identity")
        if not isinstance(theirs, dict):
            raise self.refused("an identity that is no object")
        mine = self._value["identity"]
        absent = tuple(name for name in mine if name not in theirs)
        other = [name for name in mine if name in theirs and theirs[name] != mine[name]]
        words = [f"{name} {theirs[name]!r}, now {mine[name]!r}" for name in other]
        if not self._shown_only:
            words += [f"{name} not recorded, now {mine[name]!r}" for name in absent]
        if words:
            raise self.refused(f"measured with {'; '.join(words)}")
        if (fault := fault_in(value.get("stages"))) is not None:
            raise self.refused(fault)
        self.unrecorded = absent
        self._value |= {"identity": theirs, "stages": value["stages"]}

    def _parsed(self) -> dict[str, Any]:
        """Return the file's object, of our format and version."""
        try:
            value = json.loads(self._path.read_text(encoding="utf-8"), parse_constant=_no_constant)
        except (OSError, ValueError, RecursionError) as error:
            raise self.refused(f"{type(error).__name__}: {error}") from error
        if not isinstance(value, dict) or "format" not in value:
            raise self.refused("no results file: it names no format")
        if (value["format"], value.get("version")) != (FORMAT, VERSION):
            raise self.refused(f"{value['format']!r} of version {value.get('version')!r}")
        return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no figure")
