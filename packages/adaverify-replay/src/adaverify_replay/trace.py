"""The trace: one JSON line a step after one header line."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from adaverify_contracts import StepRecord, TraceError
from adaverify_replay.trace_fields import fault_of, repeated
from adaverify_replay.trace_rows import read_rows

FORMAT = "adaverify-trace"
VERSION = 2
# Version 1 had no rows: its records are read without any.
READABLE = (1, 2)
# A record of 512 requests and 7 drafts takes some 35 kB and a header with every setting a few: what is longer
# is no trace, and a file larger than this would not fit the memory of a small machine as records.
MAX_LINE = 1 << 20
MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """The first line: what the records were measured on.

    Attributes:
        version: version of the format; this package writes 2 and reads 1 and 2.
        fingerprint: GPU, torch, kernels, model, ladder and K, as the cost table names them.
        settings: the settings in force, JSON-ready.
    """

    version: int = VERSION
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON-ready header."""
        return {
            "format": FORMAT,
            "version": self.version,
            "fingerprint": dict(self.fingerprint),
            "settings": dict(self.settings),
        }


class TraceWriter:
    """Appends step records to a file, whole lines only.

    Lines reach the operating system together, in one write, every ``flush_every`` records and on ``close``: a
    crash of this process loses at most that many records and never leaves half of one. With ``sync`` each
    flush also waits for the disk, which survives a crash of the machine. Opening an existing trace appends to
    it; a last line that a crash cut short is dropped and counted in ``dropped_bytes``.

    Args:
        path: the file; its folder must exist.
        header: written when the file is new, of the version this package writes. An existing file must carry
            an equal one, so nothing is appended to a trace of version 1.
        flush_every: records per flush, at least 1.
        sync: whether a flush waits for the disk.

    Raises:
        TraceError: the file cannot be opened, is no trace, or belongs to another setup.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        header: TraceHeader | None = None,
        *,
        flush_every: int = 16,
        sync: bool = False,
    ) -> None:
        self._path = Path(path)
        self._flush_every = max(1, flush_every)
        self._sync = sync
        self._lines: list[str] = []
        self.dropped_bytes = 0
        header = header or TraceHeader()
        if header.version != VERSION:
            problem = "a trace is written in one version only"
            raise TraceError(
                problem, path=str(path), arrived=header.version, allowed=f"{VERSION}", remedy="leave it out"
            )
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise self._error("cannot be opened for appending", error) from error
        self._open = True
        try:
            self._require_regular()
            self._start(header)
        except BaseException:
            self._open = False
            os.close(self._descriptor)
            raise

    def write(self, record: StepRecord) -> None:
        """Append one record.

        Raises:
            TraceError: the writer is closed, a number is not finite, or the disk refuses.
        """
        if not self._open:
            problem = "the writer is closed"
            raise TraceError(
                problem,
                path=str(self._path),
                arrived=f"step {record.step}",
                allowed="records before close()",
                remedy="write before close()",
            )
        try:
            self._lines.append(_line(record.as_dict()))
        except ValueError as error:
            problem = f"the record of step {record.step} is not JSON: {error}"
            raise TraceError(
                problem,
                path=str(self._path),
                arrived=record,
                allowed="finite numbers, or None",
                remedy="record finite numbers or None",
            ) from error
        if len(self._lines) >= self._flush_every:
            self.flush()

    def flush(self) -> None:
        """Hand every buffered line to the operating system, in one write."""
        if self._lines:
            self._append("".join(self._lines))
            self._lines.clear()

    def close(self) -> None:
        """Flush and close; closing twice is harmless."""
        if not self._open:
            return
        try:
            self.flush()
        finally:
            self._open = False
            os.close(self._descriptor)

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require_regular(self) -> None:
        # A device or a pipe has no end to read back to: /dev/full filled the memory of a machine.
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            problem = "a trace is appended to a regular file only"
            raise TraceError(
                problem,
                path=str(self._path),
                arrived="a device or a pipe",
                allowed="a regular file, or a path where one can be made",
                remedy="choose the path of a regular file",
            )
        if found.st_size > MAX_BYTES:
            problem, allowed = "the trace is too large to be continued", f"at most {MAX_BYTES} bytes"
            raise TraceError(
                problem,
                path=str(self._path),
                arrived=f"{found.st_size} bytes",
                allowed=allowed,
                remedy="write to a new file",
            )

    def _start(self, header: TraceHeader) -> None:
        content = self._path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        self.dropped_bytes = len(content) - len(whole)
        if self.dropped_bytes:
            if not whole and not content.startswith(b'{"format"'):
                problem = "the file holds something else than a trace"
                raise TraceError(
                    problem,
                    path=str(self._path),
                    line=1,
                    arrived=content[:80].decode("utf-8", "replace"),
                    allowed="a trace to append to, or no file",
                    remedy="choose another path",
                )
            os.ftruncate(self._descriptor, len(whole))
        if not whole:
            self._append(_line(header.as_dict()))
            return
        found = _header(str(self._path), whole[: whole.index(b"\n")].decode("utf-8", "replace"))
        here = json.loads(_line(header.as_dict()))
        if differences := _differences(found.as_dict(), here):
            raise TraceError(
                "the trace belongs to another setup",
                path=str(self._path),
                line=1,
                arrived={
                    name: f"{was!r} in the file, {now!r} here" for name, (was, now) in differences.items()
                },
                allowed="a header that is equal field by field",
                remedy="write to a new file",
            )

    def _append(self, text: str) -> None:
        data = text.encode("utf-8")
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
            if self._sync:
                os.fsync(self._descriptor)
        except OSError as error:
            raise self._error("cannot be written", error) from error

    def _error(self, problem: str, error: OSError) -> TraceError:
        return TraceError(
            f"{problem}: {error.strerror}",
            path=str(self._path),
            arrived=str(self._path),
            allowed="a writable file on a disk with room",
            remedy="choose a writable path with room",
        )


def read_trace(path: str | os.PathLike[str], *, allow_torn_tail: bool = False) -> list[StepRecord]:
    """Return the records of a trace, in file order.

    Args:
        path: the file.
        allow_torn_tail: drop a last line without a line end, as a crash of the machine may leave it.

    Raises:
        TraceError: the file is missing, no regular file or larger than 1 GiB, or a line is corrupt or longer
            than 1 MiB, holds a number or a state that no step has, or repeats the step before it; the error
            carries the line's number.
    """
    lines = list(_lines(path))
    version = _header(str(path), lines[0] if lines else "").version
    if allow_torn_tail and len(lines) > 1 and not lines[-1].endswith("\n"):
        lines.pop()
    records: list[StepRecord] = []
    for number, line in enumerate(lines[1:], start=2):
        record = _record(str(path), version, number, line)
        if repeated(records, record):
            problem = "the record repeats the step of the line before"
            allowed = "step numbers that rise within a run; a lower one begins the next run"
            raise _odd_line(problem, str(path), number, record.step, allowed)
        records.append(record)
    return records


def read_header(path: str | os.PathLike[str]) -> TraceHeader:
    """Return the header of a trace; nothing but the first line is read.

    Raises:
        TraceError: the file is missing, or its first line is no header of a version this package reads.
    """
    return _header(str(path), next(_lines(path), ""))


def _lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the lines of a file with their ends; only a line feed ends one, JSON may hold others."""
    number, size = 0, 0
    try:
        _require_file(path)
        with Path(path).open("rb") as file:
            while line := file.readline(MAX_LINE + 1):
                number, size = number + 1, size + len(line)
                if len(line) > MAX_LINE or size > MAX_BYTES:
                    raise _too_large(path, number, line)
                yield line.decode("utf-8", "replace")
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise TraceError(
            problem,
            path=str(path),
            arrived=str(path),
            allowed="a file that can be read",
            remedy="check the path",
        ) from error


def _require_file(path: str | os.PathLike[str]) -> None:
    mode = Path(path).stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise TraceError(
            "a trace is read from a regular file only",
            path=str(path),
            arrived="a device or a pipe, which has no end",
            allowed="a regular file",
            remedy="save the trace in a file first",
        )


def _too_large(path: str | os.PathLike[str], number: int, line: bytes) -> TraceError:
    if len(line) > MAX_LINE:
        arrived, allowed = line[:80].decode("utf-8", "replace"), f"at most {MAX_LINE} bytes"
        return _odd_line("the line is too long for a step record", str(path), number, arrived, allowed)
    return TraceError(
        "the trace is too large to be read as a whole",
        path=str(path),
        line=number,
        arrived=f"more than {MAX_BYTES} bytes",
        allowed=f"at most {MAX_BYTES} bytes",
        remedy="split it, the header line first in every part",
    )


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":")) + "\n"


def _object(path: str, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        cut = "" if line.endswith("\n") else "; it has no line end, so a crash may have cut it"
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        problem = f"the line is not JSON ({why}){cut}"
        remedy = "remove the line, or read with allow_torn_tail=True if it is the last"
        raise _odd_line(problem, path, number, line[:80], "one JSON object a line", remedy) from error
    if not isinstance(value, dict):
        raise _odd_line("the line is not a JSON object", path, number, line[:80], "one JSON object a line")
    return value


def _odd_line(
    problem: str, path: str, number: int, arrived: object, allowed: str, remedy: str = "remove the line"
) -> TraceError:
    return TraceError(problem, path=path, line=number, arrived=arrived, allowed=allowed, remedy=remedy)


def _header(path: str, line: str) -> TraceHeader:
    if not line:
        problem = "the file is empty"
        raise _odd_line(problem, path, 1, "nothing", "a header line", "record a run first")
    value = _object(path, 1, line)
    if value.get("format") != FORMAT:
        problem = "the first line is not a trace header"
        allowed = f'an object whose "format" is "{FORMAT}"'
        raise _odd_line(problem, path, 1, value.get("format"), allowed, "check the path")
    version = value.get("version")
    if type(version) is not int or version not in READABLE:
        problem = "the trace has a version that this package does not read"
        remedy = "read it with the adaverify-replay that wrote it"
        allowed = ", ".join(map(str, READABLE))
        raise TraceError(problem, path=path, line=1, arrived=version, allowed=allowed, remedy=remedy)
    parts = {name: value.get(name) for name in ("fingerprint", "settings")}
    for name, part in parts.items():
        if not isinstance(part, dict):
            problem = f"the header's {name} is not an object"
            raise _odd_line(problem, path, 1, part, "a JSON object", "record the run again")
    return TraceHeader(version, parts["fingerprint"] or {}, parts["settings"] or {})


_FIELDS = {item.name for item in fields(StepRecord)}


def _record(path: str, version: int, number: int, line: str) -> StepRecord:
    value = _object(path, number, line)
    required = _FIELDS - {"rows"} if version == 1 else _FIELDS
    if set(value) != required:
        problem = "the record does not have the fields of a step record"
        missing, extra = sorted(required - set(value)), sorted(set(value) - required)
        arrived = {"missing": missing, "unknown": extra}
        raise _odd_line(problem, path, number, arrived, ", ".join(sorted(required)))
    if isinstance(value["fallbacks"], list):
        value["fallbacks"] = tuple(value["fallbacks"])
    rows = None if value.get("rows") is None else read_rows(value["rows"])
    if isinstance(rows, str):
        problem = f"the record's rows are malformed: {rows}"
        raise _odd_line(problem, path, number, line[:80], "rows as the run wrote them, or null")
    value["rows"] = rows
    for name, item in value.items():
        if name != "rows" and (fault := fault_of(name, item)):
            problem, allowed = fault
            raise _odd_line(problem, path, number, item, allowed)
    return StepRecord(**value)


def _differences(one: Any, other: Any, name: str = "") -> dict[str, tuple[Any, Any]]:
    """Return the fields, by dotted name, in which two JSON values differ, each with both values."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return {} if one == other else {name: (one, other)}
    found: dict[str, tuple[Any, Any]] = {}
    for key in dict.fromkeys((*one, *other)):
        found |= _differences(one.get(key), other.get(key), f"{name}.{key}" if name else key)
    return found
