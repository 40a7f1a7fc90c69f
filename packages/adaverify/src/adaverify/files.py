"""Output files and folders, checked before a long run instead of after it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile

from adaverify_contracts import AdaverifyError


def require_writable(path: Path, option: str) -> None:
    """Refuse a path that cannot be written later; nothing is left behind.

    Args:
        path: the file that a command will write.
        option: how the user named it, for the message.

    Raises:
        AdaverifyError: its folder is missing, it is a folder, or the system refuses to open it.
    """
    existed = path.exists()
    if existed and not path.is_dir() and not path.is_file():
        # Opening a pipe would wait for its reader, and a device has no end.
        raise AdaverifyError(
            f"the file of {option} is a device or a pipe",
            arrived=str(path),
            allowed="a regular file, or a path where one can be made",
            remedy="choose another path",
        )
    try:
        # Asking for permissions is not enough: a read-only or full file system says no only when it is tried.
        with path.open("ab"):
            pass
    except OSError as error:
        problem = f"the file of {option} cannot be written: {error.strerror}"
        remedy = "choose a file in a folder that exists and is writable"
        raise AdaverifyError(problem, arrived=str(path), allowed="a writable file", remedy=remedy) from error
    if not existed:
        path.unlink()


def require_folder(path: Path, option: str) -> None:
    """Refuse a folder in which no file can be made later; folders that are missing are made.

    Args:
        path: the folder that a command will write into.
        option: how the user named it, for the message.

    Raises:
        AdaverifyError: it is no folder, or the system refuses to make it or a file in it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path):
            pass
    except OSError as error:
        problem = f"the folder of {option} cannot be written to: {error.strerror}"
        remedy = "choose a folder that is writable, or can be made"
        raise AdaverifyError(
            problem, arrived=str(path), allowed="a writable folder", remedy=remedy
        ) from error


def write_text(path: Path, text: str, option: str) -> None:
    """Write a result to a file that ``require_writable`` has let pass.

    Raises:
        AdaverifyError: it cannot be written any more, for instance because the disk is full.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        problem = f"the file of {option} cannot be written: {error.strerror}"
        remedy = "make room, or choose another file"
        raise AdaverifyError(problem, arrived=str(path), allowed="a writable file", remedy=remedy) from error
