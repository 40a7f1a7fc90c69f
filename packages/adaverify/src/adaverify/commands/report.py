"""``adaverify report``: what a trace says."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from adaverify.console import emit_json, out, reports_errors, table
from adaverify_replay import plot_trace, read_trace, summarise


@reports_errors
def report(
    trace: Annotated[Path, typer.Argument(help="A trace written by `adaverify run --trace`.")],
    plot: Annotated[Path | None, typer.Option(help="Draw drafts and step times to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")] = False,
) -> None:
    """Summarise a trace: states, budgets, acceptance, predicted against realised."""
    records = read_trace(trace)
    summary = asdict(summarise(records))
    if plot is not None:
        plot_trace(records, plot)
    if json:
        emit_json(summary)
        return
    rows = [(name, value) for name, value in summary.items() if not isinstance(value, dict)]
    out().print(table(f"Trace {trace}", ("figure", "value"), rows))
    for name, value in summary.items():
        if isinstance(value, dict):
            out().print(table(name.replace("_", " "), ("name", "value"), list(value.items())))
    if plot is not None:
        out().print(f"Plot: {plot}", markup=False, highlight=False)
