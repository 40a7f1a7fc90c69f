"""JSON files, read and written as a whole: only where they have an end and a size, and never half of one."""

from __future__ import annotations

import json
import os
import secrets
import stat
from pathlib import Path

# A cost table of 10 000 points takes 1 MB, a calibration less: what is larger is some other file.
MAX_BYTES = 64 << 20


def read_json(path: Path) -> object:
    """Return the value of a JSON file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no regular file, larger than 64 MiB, not UTF-8, no JSON or nested too deeply.
    """
    found = path.stat()
    # A device has no end: reading one would fill the memory. A pipe would wait for its writer.
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise ValueError("a device or a pipe is no regular file")
    if found.st_size > MAX_BYTES:
        raise ValueError(f"{found.st_size} bytes are more than {MAX_BYTES}")
    try:
        value: object = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return value


def write_whole(path: Path, text: str) -> None:
    """Write a text file; whoever reads, interrupts or writes it too meets the old file or a new one.

    A link stays one: what it points to is written.

    Raises:
        OSError: the file cannot be written. What lay there stays.
    """
    path = Path(os.path.realpath(path))
    # Not mkstemp: its mode 600 would hide the file from whoever else shares the folder. Not one fixed name:
    # two processes would write into each other's part.
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("x", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
