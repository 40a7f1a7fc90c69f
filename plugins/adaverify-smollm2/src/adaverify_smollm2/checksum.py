"""Checksums of cached files, with a stamp that makes the second check cheap."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
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
    replacement and edits; it does not promise to catch a change that keeps size and modification time. Delete
    the stamp, ``NAME.verified.json`` beside the file, and the next check hashes the file.
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
    # Not mkstemp: its mode 600 would hide the stamp from whoever else reads a shared cache.
    part = path.with_name(f".stamp-{secrets.token_hex(8)}")
    try:
        with part.open("x", encoding="utf-8") as stream:
            json.dump(stamp, stream)
        part.replace(stamp_path(path))
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
