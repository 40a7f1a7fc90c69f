"""Standard output while a stranger's module is imported: what it prints is none of our results."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast


@contextmanager
def output_diverted() -> Iterator[None]:
    """Send what is printed to standard error, and put standard output back, whatever was done to it."""
    kept = sys.stdout
    sys.stdout = cast(TextIO, _Diverted(sys.stderr))
    try:
        yield
    finally:
        sys.stdout = kept


class _Diverted:
    """Another stream, which whoever holds this cannot close; a module may keep it after its import."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return len(text) if self._stream is None else self._stream.write(text)

    def flush(self) -> None:
        if self._stream is not None:
            self._stream.flush()

    def close(self) -> None:
        """Do nothing: the stream is not the importer's to close."""

    def detach(self) -> None:
        """Do nothing, as ``close``."""
