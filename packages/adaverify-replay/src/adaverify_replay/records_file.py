"""A file of arrays with one JSON document: a compressed archive that NumPy reads, without pickles."""

from __future__ import annotations

import json
import os
import secrets
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from adaverify_contracts import RecordsError

HEADER = "header"
# An archive may claim any size: what is larger, packed or unpacked, was not written by ``write_arrays``.
MAX_BYTES = 1 << 30
_DAMAGES = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError)
_ALLOWED = "a file that `adaverify record` wrote"
_REMEDY = "check the path, or record it again with `adaverify record`"


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], document: Mapping[str, Any]) -> None:
    """Write arrays and a JSON document; a reader sees the old file or the new one, never half of it.

    Raises:
        RecordsError: it cannot be written.
    """
    text = json.dumps(document, sort_keys=True, allow_nan=False).encode()
    named: dict[str, Any] = {HEADER: np.frombuffer(text, np.uint8), **arrays}
    # Not mkstemp: its mode 600 would hide the file from whoever else shares the folder.
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as stream:
            np.savez_compressed(stream, **named)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except OSError as error:
        raise RecordsError(
            f"cannot be written: {error.strerror}",
            path=str(path),
            allowed="a file in a writable folder",
            remedy="choose another path",
        ) from error
    finally:
        part.unlink(missing_ok=True)


def read_arrays(
    path: Path, kinds: Mapping[str, np.dtype[Any]]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays that ``kinds`` names, with their dtypes, and the JSON document.

    Raises:
        RecordsError: the file is missing, damaged, too large, or holds other arrays.
    """
    try:
        _require_size(path)
        with np.load(path, allow_pickle=False) as stored:
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise ValueError("one array, and no archive")
            if set(stored.files) != {HEADER, *kinds}:
                raise ValueError(f"arrays {', '.join(sorted(stored.files))}")
            arrays = {name: stored[name] for name in kinds}
            document = _document(stored[HEADER].tobytes())
    except _DAMAGES as error:
        raise RecordsError(
            "the records cannot be read",
            path=str(path),
            arrived=f"{type(error).__name__}: {error}",
            allowed=_ALLOWED,
            remedy=_REMEDY,
        ) from error
    if not isinstance(document, dict):
        raise RecordsError(
            "the records have no header",
            path=str(path),
            arrived=type(document).__name__,
            allowed="a JSON object",
            remedy=_REMEDY,
        )
    return arrays, document


def _document(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("a header that is nested too deeply") from error


def _require_size(path: Path) -> None:
    if not path.is_file():
        # A device has no end, and a pipe waits.
        raise FileNotFoundError(f"no regular file {path.name}")
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if max(size, path.stat().st_size) > MAX_BYTES:
        raise ValueError(f"{size} bytes unpacked, of at most {MAX_BYTES}")
