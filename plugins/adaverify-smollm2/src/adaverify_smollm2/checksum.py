"""Checksums of cached files, with a stamp that makes the second check cheap."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path

CHUNK_BYTES = 1 << 20


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file as lower-case hexadecimal; raises ``OSError`` if it cannot be read."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def stamp_path(path: Path) -> Path:
    """Return where the stamp of ``path`` lies: beside it."""
    return path.with_name(path.name + ".verified.json")


def is_verified(path: Path, size: int, sha256: str) -> bool:
    """Tell whether ``path`` holds exactly the pinned bytes.

    A stamp with the same checksum, size and modification time is believed, which takes microseconds; without
    one the file is hashed (0.1 s for 98 MB) and a matching file is stamped. The stamp catches truncation,
    replacement and edits; it does not promise to catch a change that keeps size and modification time.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    if status.st_size != size:
        return False
    stamp = {"sha256": sha256, "size": size, "mtime_ns": status.st_mtime_ns}
    if _read_stamp(path) == stamp:
        return True
    if sha256_of(path) != sha256:
        return False
    _write_stamp(path, stamp)
    return True


def _read_stamp(path: Path) -> object:
    try:
        return json.loads(stamp_path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _write_stamp(path: Path, stamp: dict[str, object]) -> None:
    # A read-only cache directory is legitimate (a shared image): then the file is hashed at every start.
    try:
        handle, name = tempfile.mkstemp(prefix=".stamp-", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(stamp, stream)
        Path(name).replace(stamp_path(path))
    except OSError:
        return
