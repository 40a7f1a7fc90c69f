"""What every command shares: tables, JSON, progress and the way errors end a process."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, wraps
from typing import Any, ParamSpec

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from adaverify_contracts import AdaverifyError

P = ParamSpec("P")

# Exit codes, also in the documentation of the command line. 2 is typer's own for wrong usage; the last two
# are 128 and the number of the signal that ends a process in the same situation.
OK = 0
CHECK_FAILED = 1
REFUSED = 3
INTERRUPTED = 130
PIPE_CLOSED = 141

# A number that was formatted beforehand: decimals, a range, a percentage.
_NUMBER = re.compile(r"-?\d+(\.\d+)?(-\d+\.\d+)?( %)?")


class _Console(Console):
    """Leaves a closed pipe to ``reports_errors``: rich would exit with 1, our code for a failed check."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


@cache
def out() -> Console:
    """Return the console of standard output; made late, because rich reads the environment."""
    return _Console()


@cache
def err() -> Console:
    """Return the console of standard error: progress and messages, so that `--json` prints one JSON value."""
    return _Console(stderr=True)


def say(text: str, style: str | None = None, *, to: Console | None = None) -> None:
    """Print one paragraph as it is: brackets are no markup, and a path is not cut at the console's width."""
    (to or out()).print(Text(text, style=style or ""), soft_wrap="/" in text or "\n" in text)


def note(text: str) -> None:
    """Say something beside the result, on standard error."""
    say(text, "yellow", to=err())


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table that fits 80 columns; numbers are right-aligned, None is a dash.

    Text is shown as it is: a reason may name an extra such as ``adaverify-replay[plot]``.
    """
    result = Table(
        title=Text(title, style="bold"),
        title_justify="left",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 0),
    )
    body = [list(row) for row in rows]
    for index, column in enumerate(columns):
        values = [row[index] for row in body]
        numeric = bool(values) and all(value is None or _is_number(value) for value in values)
        result.add_column(Text(column), justify="right" if numeric else "left", overflow="fold")
    for row in body:
        result.add_row(*(Text(cell(value)) for value in row))
    return result


def cell(value: object) -> str:
    """Return one value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
    return str(value)


def emit_json(value: Any) -> None:
    """Write one JSON value to standard output and nothing else; a number that is not finite becomes null."""
    typer.echo(json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False))


def progress() -> Progress:
    """Return a progress display on standard error; it is silent where that is no terminal."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=10),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        console=err(),
        transient=True,
        disable=not err().is_terminal,
    )


def reports_errors(command: Callable[P, None]) -> Callable[P, None]:
    """End a command with the code of what stopped it; a mistake of our own keeps its traceback.

    A typed error prints what arrived, what was allowed and what to do, and ends with ``REFUSED``. Ctrl-C ends
    with ``INTERRUPTED``, a reader that closed the pipe with ``PIPE_CLOSED``.
    """

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except AdaverifyError as error:
            print_error(error)
            raise typer.Exit(REFUSED) from error
        except KeyboardInterrupt as error:
            note("interrupted")
            raise typer.Exit(INTERRUPTED) from error
        except BrokenPipeError as error:
            # The interpreter flushes once more when it ends, and would complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(PIPE_CLOSED) from error

    return wrapped


def print_error(error: AdaverifyError) -> None:
    """Print a typed error on standard error: what arrived, what was allowed, what to do."""
    err().print(Text.assemble((type(error).__name__, "bold red"), ": ", error.problem), soft_wrap=True)
    for label, value in (("arrived", error.arrived), ("allowed", error.allowed), ("to do", error.remedy)):
        if value is not None:
            err().print(Text(f"  {label}: {_words(value)}"), soft_wrap=True)


def _words(value: object) -> str:
    """Return what arrived as a reader would write it: lists with commas, mappings with equals signs."""
    if isinstance(value, dict):
        return ", ".join(f"{name} = {item}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return str(value)


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        return _NUMBER.fullmatch(value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


def finite(value: Any) -> Any:
    """Return a JSON-ready value with None in place of numbers that are not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
