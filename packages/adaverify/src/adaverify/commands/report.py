"""``adaverify report``: what a trace says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from adaverify.console import emit_json, note, out, reports_errors, say, table
from adaverify.files import require_apart, require_writable
from adaverify.options import Json, Plot
from adaverify.running import known_records
from adaverify.usage import path
from adaverify_replay import plot_trace, require_plottable, summarise


@reports_errors
def report(
    trace: Annotated[
        Path, typer.Argument(parser=path, metavar="TRACE", help="A trace written by `adaverify run --trace`.")
    ],
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Summarise a trace: states, budgets, acceptance, predicted against realised."""
    if plot is not None:
        require_plottable(plot)
        require_apart({"--plot": plot}, {"the trace": [trace]})
        require_writable(plot, "--plot")
    records = known_records(trace, "remove the line, or name a file that `adaverify run --trace` wrote")
    if _cut_short(trace):
        note(f"the last line of {trace} was cut short and is left out")
    if not records:
        note(
            f"{trace} holds a header and no step, so there is nothing to summarise: the run that wrote it "
            "ended before its first adaptive decode step, or no prompt was given more than one new token"
        )
    if plot is not None:
        plot_trace(records, plot)
    summary = summarise(records).as_dict()
    if json:
        emit_json(summary)
        return
    _render(trace, summary)
    if plot is not None:
        say(f"Plot: {plot}")


def _cut_short(trace: Path) -> bool:
    with trace.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _render(trace: Path, summary: dict[str, Any]) -> None:
    figures = [(name, cell) for name, cell in summary.items() if not isinstance(cell, dict)]
    say(f"Trace {trace}")
    out().print()
    out().print(table("Totals", ("figure", "value"), figures))
    for name, value in summary.items():
        if not isinstance(value, dict):
            continue
        out().print()
        title = name.replace("_", " ")
        if value:
            out().print(table(title, ("name", "value"), list(value.items())))
        else:
            say(f"{title}: none")
