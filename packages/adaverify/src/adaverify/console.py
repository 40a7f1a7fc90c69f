"""What every command shares: tables, JSON, progress and the way errors end a process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache, wraps
from typing import Any, ParamSpec

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from adaverify_contracts import AdaverifyError

P = ParamSpec("P")

# Exit codes, also in the documentation of the command line. 2 is typer's own for wrong usage.
OK = 0
CHECK_FAILED = 1
REFUSED = 3


@cache
def out() -> Console:
    """Return the console of standard output; made late, because rich reads the environment."""
    return Console()


@cache
def err() -> Console:
    """Return the console of standard error: progress and messages, so that `--json` prints one JSON value."""
    return Console(stderr=True)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table; numbers are right-aligned, None is a dash."""
    result = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    body = [list(row) for row in rows]
    for index, column in enumerate(columns):
        numeric = bool(body) and all(isinstance(row[index], int | float) for row in body)
        result.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in body:
        result.add_row(*(cell(value) for value in row))
    return result


def cell(value: object) -> str:
    """Return one value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def emit_json(value: Any) -> None:
    """Write one JSON value to standard output and nothing else."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def progress() -> Progress:
    """Return a progress display on standard error; it is silent where that is no terminal."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=err(),
        transient=True,
        disable=not err().is_terminal,
    )


def reports_errors(command: Callable[P, None]) -> Callable[P, None]:
    """End a command with code 3 and the message of a typed error; anything else keeps its traceback."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except AdaverifyError as error:
            err().print(f"[bold red]{type(error).__name__}[/]: ", end="")
            err().print(error.problem, markup=False, highlight=False)
            for label, value in (
                ("arrived", error.arrived),
                ("allowed", error.allowed),
                ("to do", error.remedy),
            ):
                if value is not None:
                    err().print(f"  {label}: {value}", markup=False, highlight=False)
            raise typer.Exit(REFUSED) from error

    return wrapped
