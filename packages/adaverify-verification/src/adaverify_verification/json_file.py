"""JSON files that others wrote: read as a whole, so only where they have an end and a size to be read."""

from __future__ import annotations

import json
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
