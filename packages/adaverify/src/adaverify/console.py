"""What every command shares: tables, JSON, progress and the way errors end a process."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, wraps
from time import monotonic
from typing import Any, ParamSpec

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from adaverify.start import Interruptible
from adaverify.streams import OutputError, PipeClosedError, discard, guard_streams
from adaverify.visible import visible, visible_json
from adaverify_contracts import AdaverifyError
from adaverify_contracts.describing import shown, text_of, traceback_of

P = ParamSpec("P")

# Exit codes, also in the documentation of the command line. 2 is typer's own for wrong usage; the last two
# are 128 and the number of the signal that ends a process in the same situation.
OK = 0
CHECK_FAILED = 1
REFUSED = 3
FAULT = 4
INTERRUPTED = 130
PIPE_CLOSED = 141
EXIT_CODES = (
    "Exit codes: 0 done, 1 a check failed, 2 wrong usage, 3 bad input, refused with a typed error, "
    "4 an unexpected fault or an output that cannot be written, 130 interrupted, 141 the pipe was closed."
)

# A table that nobody looks at in a terminal is as wide as its cells: text cut to fit 80 columns is lost to
# grep and to a file.
_WIDE = 1000
_RULE = 80
# Words up to this length stay whole, however narrow the console is; longer ones, such as paths, are folded.
_WHOLE_WORD = 18
# Seconds between two lines of progress where no terminal shows a bar.
_LINE_SECONDS = 10.0

# A number that was formatted beforehand: decimals, a range, a percentage.
_NUMBER = re.compile(r"-?\d+(\.\d+)?(-\d+\.\d+)?( %)?")


@cache
def out() -> Console:
    """Return the console of standard output; made late, because rich reads the environment."""
    return _console(stderr=False)


@cache
def err() -> Console:
    """Return the console of standard error: progress and messages, so that `--json` prints one JSON value."""
    return _console(stderr=True)


class _Console(Console):
    """A console that cuts nothing off: where a table is wider than it, its rows run over."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does."""
        super().print(*objects, **({"crop": False} | options))


def _console(*, stderr: bool) -> Console:
    console = _Console(stderr=stderr)
    if not console.is_terminal:
        # The width that the user set (COLUMNS), if there is one.
        console.width = shutil.get_terminal_size((_WIDE, 24)).columns
    return console


def say(text: str, style: str | None = None, *, to: Console | None = None) -> None:
    """Print one paragraph as it is: brackets are no markup, and no path or `command` is broken over lines.

    Like everything that this module prints it shows control characters as escapes.
    """
    whole = any(mark in text for mark in "/\n`")
    (to or out()).print(Text(visible(text), style=style or ""), soft_wrap=whole)


def rule(title: str = "") -> None:
    """Print a line across, with a title, to standard output."""
    console = out()
    console.print(
        Rule(
            visible(title, one_line=True),
            align="left",
            style="dim",
            # rich minds the encoding only where there is a title.
            characters="-" if console.options.ascii_only else "\u2500",
        ),
        width=min(_RULE, console.width),
    )


def note(text: str) -> None:
    """Say something beside the result, on standard error."""
    say(text, "yellow", to=err())


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table that fits 80 columns; numbers are right-aligned, None is a dash.

    Text is shown as it is: a reason may name an extra such as ``adaverify-replay[plot]``.
    """
    result = Table(
        title=Text(visible(title), style="bold"),
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
        shown_values = [visible(cell(value)) for value in values]
        words = [len(word) for text in (column, *shown_values) for word in text.split()]
        result.add_column(
            Text(column),
            justify="right" if numeric else "left",
            overflow="fold",
            min_width=min(max(words, default=0), _WHOLE_WORD),
        )
    for row in body:
        result.add_row(*(Text(visible(cell(value))) for value in row))
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
    sys.stdout.write(json_text(value, indent=2, ascii_only=not _takes_unicode()) + "\n")


def json_text(value: Any, *, indent: int, ascii_only: bool = False) -> str:
    """Return one JSON value as text that a file and a terminal take: control characters are escapes."""
    return visible_json(json.dumps(finite(value), indent=indent, ensure_ascii=ascii_only, allow_nan=False))


def _takes_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun: 1 prompt, 2 prompts."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


class _Progress(Progress):
    """A display on a terminal; elsewhere a line for what goes on, at most one in ``_LINE_SECONDS``."""

    def __init__(self, *columns: ProgressColumn, **options: Any) -> None:
        super().__init__(*columns, **options)
        self._last = monotonic()

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Update one task as rich does."""
        super().update(task_id, **changes)
        now = monotonic()
        if self.console.is_terminal or now - self._last < _LINE_SECONDS:
            return
        self._last = now
        task = next(one for one in self.tasks if one.id == task_id)
        share = "" if task.total is None else f" {100 * task.completed / max(task.total, 1):.0f} %"
        words = f"{task.description}:{share} {task.fields['note']}".rstrip()
        self.console.print(Text(f"{visible(words)} ({task.elapsed or 0:.0f} s)"), soft_wrap=True)


def progress() -> Progress:
    """Return a progress display on standard error; where that is no terminal, a line now and then."""
    return _Progress(
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

    A typed error prints what arrived, what was allowed and what to do, and ends with ``REFUSED``; anything
    else that was raised with ``FAULT``. Ctrl-C ends with ``INTERRUPTED``, a reader that closed the pipe with
    ``PIPE_CLOSED``.
    """

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with Interruptible():
                command(*args, **kwargs)
                sys.stdout.flush()
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except (Exception, KeyboardInterrupt) as error:
            raise typer.Exit(ending(error)) from error

    return wrapped


def run_process(command: Callable[[], None]) -> None:
    """Run a whole command line, so that what it could not print ends it with a code of its own, too.

    A standard output that is closed from the start is refused before any work: nobody could read the result.
    A standard error that is closed or full is done without.
    """
    has_output = guard_streams()
    try:
        if not has_output:
            raise OutputError("it is closed")
        try:
            command()
        finally:
            sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - it is said, with its traceback
        sys.exit(ending(error))


def ending(error: BaseException) -> int:
    """Say what ended the process, as far as anybody can still be told, and return its exit code."""
    if isinstance(error, PipeClosedError):
        discard(sys.stdout)
        return PIPE_CLOSED
    if isinstance(error, AdaverifyError):
        print_error(error)
        return REFUSED
    if isinstance(error, KeyboardInterrupt):
        note("interrupted")
        return INTERRUPTED
    if isinstance(error, OutputError):
        discard(sys.stdout)
        say(f"standard output cannot be written: {error}", "bold red", to=err())
        return FAULT
    say(traceback_of(error).rstrip(), to=err())
    say("This is a fault of adaverify. Please report it with the lines above.", "bold red", to=err())
    return FAULT


def print_error(error: AdaverifyError) -> None:
    """Print a typed error on standard error: what arrived, what was allowed, what to do."""
    problem = visible(error.problem)
    err().print(Text.assemble((type(error).__name__, "bold red"), ": ", problem), soft_wrap=True)
    if error.has_arrived:
        err().print(Text(f"  arrived: {visible(_words(error.arrived), one_line=True)}"), soft_wrap=True)
    for label, value in (("allowed", error.allowed), ("to do", error.remedy)):
        if value is not None:
            err().print(Text(f"  {label}: {visible(_words(value), one_line=True)}"), soft_wrap=True)


def _words(value: object) -> str:
    """Return what arrived as a reader would write it: lists with commas, mappings with equals signs.

    What is empty is shown as Python writes it, since it would be no word at all.
    """
    if isinstance(value, dict | list | tuple | str) and not value:
        return repr(value)
    if isinstance(value, dict):
        return ", ".join(f"{name} = {text_of(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        # Beside numbers a text keeps its quotes: '1' was refused because it is none.
        mixed = len({isinstance(item, str) for item in value}) == 2
        return ", ".join(shown(item) if mixed else text_of(item) for item in value)
    return text_of(value)


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
