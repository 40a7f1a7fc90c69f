"""Output files and folders, checked before a long run instead of after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile

from adaverify_contracts import AdaverifyError
from adaverify_verification.json_file import write_whole


def require_apart(written: Mapping[str, Path | None], others: Mapping[str, Sequence[Path]]) -> None:
    """Refuse a path that is written and is also read, or written as something else: one would be lost.

    Args:
        written: files that a command writes, by the option that names them; None where it is not given.
        others: files that it reads, likewise.

    Raises:
        AdaverifyError: two of them are one file, also where a link makes them one.
    """
    named = [(option, path) for option, path in written.items() if path is not None]
    for place, (option, path) in enumerate(named):
        rest = [*named[place + 1 :], *((name, one) for name, many in others.items() for one in many)]
        for other, one in rest:
            if path.resolve() == one.resolve() or _is_same_file(path, one):
                raise AdaverifyError(
                    f"{option} and {other} name one file, and it would be written over",
                    arrived=str(path),
                    allowed="a file of its own for each",
                    remedy=f"choose another file for {option}",
                )


def _is_same_file(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False


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


def require_replaceable(path: Path, option: str) -> None:
    """Refuse a path that ``write_text`` cannot write later; nothing is left behind.

    Raises:
        AdaverifyError: as ``require_writable``, or no file can be made beside it.
    """
    require_writable(path, option)
    try:
        with TemporaryFile(dir=path.resolve().parent):
            pass
    except OSError as error:
        problem = f"no file can be made beside that of {option}, as writing it whole needs: {error.strerror}"
        remedy = "choose a file in a folder that is writable"
        raise AdaverifyError(problem, arrived=str(path), allowed="a writable file", remedy=remedy) from error


def require_folder(path: Path, option: str) -> None:
    """Refuse a folder in which no file can be made later; folders that are missing are made.

    Args:
        path: the folder that a command will write into.
        option: how the user named it, for the message.

    Raises:
        AdaverifyError: it is no folder, or the system refuses to make it or a file in it.
    """
    if path.exists() and not path.is_dir():
        raise AdaverifyError(
            f"the folder of {option} cannot be written to: what is there is no folder",
            arrived=str(path),
            allowed="a folder, or a path where one can be made",
            remedy="choose another path",
        )
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
    """Write a result to a file that ``require_replaceable`` has let pass: all of it, or nothing.

    A link is followed. What lay there stays until the new file is complete.

    Raises:
        AdaverifyError: it cannot be written any more, for instance because the disk is full.
    """
    try:
        write_whole(path, text)
    except OSError as error:
        problem = f"the file of {option} cannot be written: {error.strerror}; what lay there is as it was"
        remedy = "make room on its disk, or choose a file on another one"
        raise AdaverifyError(problem, arrived=str(path), allowed="a writable file", remedy=remedy) from error
