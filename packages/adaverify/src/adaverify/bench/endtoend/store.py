"""What a run has measured so far, in one file: written after every case, so that a cut-off run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from adaverify_contracts import AdaverifyError
from adaverify_verification.json_file import write_whole

FORMAT = "adaverify-endtoend"
VERSION = 2
"""1 had one arm of the published arrangement, called baseline, and took the model of one arm from all."""


class Store:
    """Results by stage and case.

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
        if path.exists():
            self._value["stages"] = self._read()["stages"]

    def get(self, stage: str, case: str) -> dict[str, Any] | None:
        """Return what was measured, None when it was not."""
        found: dict[str, Any] | None = self._value["stages"].get(stage, {}).get(case)
        return found

    def stage(self, stage: str) -> dict[str, dict[str, Any]]:
        """Return all cases of a stage."""
        found: dict[str, dict[str, Any]] = self._value["stages"].get(stage, {})
        return found

    def keep(self, stage: str, case: str, value: dict[str, Any]) -> None:
        """Keep a case and write the file; readers see the old one or the new one."""
        self._value["stages"].setdefault(stage, {})[case] = value
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, json.dumps(self._value, indent=1, allow_nan=False) + "\n")

    def as_dict(self) -> dict[str, Any]:
        """Return everything, JSON-ready."""
        return self._value

    def _read(self) -> dict[str, Any]:
        try:
            value: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
            found = (value["format"], value["version"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._refused(f"{type(error).__name__}: {error}") from error
        if found != (FORMAT, VERSION):
            raise self._refused(f"{found[0]} of version {found[1]}")
        mine, theirs = self._value["identity"], value["identity"]
        other = {name: theirs.get(name) for name in mine if theirs.get(name) != mine[name]}
        if other:
            raise self._refused(f"measured with {other}")
        return value

    def _refused(self, arrived: str) -> AdaverifyError:
        return AdaverifyError(
            f"the results in {self._path} cannot be continued",
            arrived=arrived,
            allowed=f"a {FORMAT} file of version {VERSION}, of the same device, records, context and model",
            remedy="choose another folder with --out, or remove the file",
        )
