"""Wrong usage: messages that show what was typed without obeying it, and values that a type cannot refuse."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from adaverify.visible import visible

# A seed is 64 bits of a generator's state.
LARGEST_SEED = 2**63 - 1
# Beyond these the engine refuses, by the name of a field instead of the option's.
COLDEST, HOTTEST = 1e-6, 1e6

# click's UsageError, wherever this typer has it: newer ones bring a click of their own.
_USAGE: type[Exception] = typer.BadParameter.__mro__[1]


class VisibleGroup(TyperGroup):
    """A group of commands whose usage errors show control characters as escapes."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Parse the group's own options."""
        with _visible_usage():
            return super().make_context(*arguments, **options)

    def invoke(self, *arguments: Any, **options: Any) -> Any:
        """Parse the command's options and run it."""
        with _visible_usage():
            return super().invoke(*arguments, **options)


@contextmanager
def _visible_usage() -> Iterator[None]:
    try:
        yield
    except _USAGE as error:
        message: Any = getattr(error, "message", None)
        if isinstance(message, str):
            error.message = visible(message, one_line=True)  # type: ignore[attr-defined]
        raise


def path(value: str | Path) -> Path:
    """Return the path that was typed; an empty one would silently become the current folder.

    A name that no file system takes is refused here, for all commands alike.
    """
    if not str(value):
        raise typer.BadParameter("an empty path names nothing")
    try:
        Path(value).lstat()
    except ValueError as error:
        raise typer.BadParameter(f"{str(value)!r} is no path: {error}") from error
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise typer.BadParameter(f"{str(value)[:40]!r}... is no path: {error.strerror}") from error
    return Path(value)


def finite_temperature(value: float) -> float:
    """Return a temperature that the engine takes; not a number is none."""
    if value != 0.0 and not COLDEST <= value <= HOTTEST:
        raise typer.BadParameter(
            f"{value!r} is no temperature; allowed: 0 (greedy), or {COLDEST:g} .. {HOTTEST:g}"
        )
    return value


def share_of_one(value: float) -> float:
    """Return a share in 0 .. 1; not a number compares as within any bounds, and is none."""
    if not 0.0 <= value <= 1.0:
        raise typer.BadParameter(f"{value!r} is no share; allowed: 0 .. 1")
    return value
