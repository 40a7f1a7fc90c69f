"""The standard streams of a process: closed ones replaced, failures told apart, any text encodable."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import IO, Any, TextIO, cast


class OutputError(Exception):
    """Standard output takes no more; the message is the system's reason.

    No ``OSError``: typer and rich have their own way with those, and exit with the code of a failed check.
    """


class PipeClosedError(OutputError):
    """Whoever read standard output has closed the pipe."""


class _Guarded:
    """A text stream whose failures go to ``failed``; everything else is the stream's own."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write as the stream does."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self.failed(error)
            return len(text)

    def flush(self) -> None:
        """Flush as the stream does."""
        try:
            self._stream.flush()
        except OSError as error:
            self.failed(error)

    def failed(self, error: OSError) -> None:
        """Decide what a failure means."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Output(_Guarded):
    """Standard output: a result that cannot be written ends the process."""

    def failed(self, error: OSError) -> None:
        """Raise what ends the process."""
        kind = PipeClosedError if isinstance(error, BrokenPipeError) else OutputError
        raise kind(error.strerror or str(error)) from error


class _Messages(_Guarded):
    """Standard error: nobody can be told that it is full, and the result is worth no less for it."""

    def failed(self, error: OSError) -> None:
        """Let this and everything after it go nowhere."""
        discard(self._stream)


def guard_streams() -> bool:
    """Prepare the standard streams of a whole process; return whether there is a standard output at all.

    The numbers 0, 1 and 2 are taken where they were free: the next file that is opened would get one of
    them, and whatever is printed would end up in it.
    """
    has_output = sys.stdout is not None
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is the one that was asked about.
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = cast(TextIO, _Output(_encodable(sys.stdout)))
    sys.stderr = cast(TextIO, _Messages(_encodable(sys.stderr)))
    return has_output


def discard(stream: IO[str]) -> None:
    """Let what a stream still holds go nowhere: the interpreter flushes once more at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class _Whole(io.BufferedWriter):
    """Passes everything on at once and entirely: a raw file may take less than it is given, and say so.

    ``owner``, the stream that the file is of, lives as long as this one: it closes the file when it goes.
    """

    def __init__(self, raw: io.RawIOBase, owner: TextIO) -> None:
        super().__init__(raw)
        self._owner = owner

    def write(self, data: Any) -> int:
        """Write all of it, or raise ``OSError``."""
        count = super().write(data)
        self.flush()
        return count


def _encodable(stream: TextIO | None) -> TextIO:
    """Return a stream that writes any text; a terminal in ASCII shows what it lacks as an escape."""
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - lives as long as the process
    if isinstance(raw := getattr(stream, "buffer", None), io.RawIOBase):
        # PYTHONUNBUFFERED: whether a raw file took all that it was given, nobody asks.
        return io.TextIOWrapper(_Whole(raw, stream), stream.encoding, "backslashreplace", write_through=True)
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    return stream
