"""``adaverify profile``: measure step times on this machine and draw the cost curve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from adaverify.console import emit_json, out, progress, reports_errors, table
from adaverify.session import DRAFTER, MODEL, Choice, measure_table, open_session, table_path
from adaverify_replay import plot_cost_curve


@reports_errors
def profile(
    concurrency: Annotated[int, typer.Option(min=1, help="Requests that run at once.")] = 16,
    context: Annotated[int, typer.Option(min=16, help="Longest sequence to price.")] = 512,
    draft_tokens: Annotated[int | None, typer.Option(min=0, help="K, draft tokens for each request.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Measured rounds; the median counts.")] = 5,
    model: Annotated[str, typer.Option(help="Target model.")] = MODEL,
    drafter: Annotated[str, typer.Option(help="Drafter, whose time is priced too.")] = DRAFTER,
    device: Annotated[str, typer.Option(help="Torch device.")] = "cpu",
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Never download anything.")] = False,
    plot: Annotated[Path, typer.Option(help="Where to draw the curve.")] = Path("cost-curve.png"),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")] = False,
) -> None:
    """Measure decode steps by tokens, requests and context; store the table and draw it."""
    choice = Choice(model, drafter, device, dtype, draft_tokens, None, offline)
    with progress() as display:
        task = display.add_task(f"loading {model}", total=None, note="")
        session = open_session(
            choice, lambda done, total: display.update(task, completed=done, total=total, note="fetching")
        )
        session = session.sized(concurrency, context).probed()
        display.reset(task, description="measuring step times", note="")
        cost_table = measure_table(
            session, lambda done, total: display.update(task, completed=done, total=total), repeats=repeats
        )
    drawn = plot_cost_curve(cost_table, plot)
    stored = None if session.settings.paths.cost_table else table_path(session)
    result = {
        "fingerprint": dict(session.fingerprint.pairs),
        "points": [
            {"tokens": tokens, "requests": curve.requests, "context": curve.context, "seconds": seconds}
            for curve in cost_table.curves
            for tokens, seconds in zip(curve.tokens, curve.measured, strict=True)
        ],
        "draft": [{"requests": count, "seconds": seconds} for count, seconds in cost_table.draft],
        "outliers": [str(outlier) for outlier in cost_table.outliers],
        "table": None if stored is None else str(stored),
        "plot": str(drawn),
    }
    if json:
        emit_json(result)
    else:
        _render(result)


def _render(result: dict[str, Any]) -> None:
    rows = [(p["requests"], p["context"], p["tokens"], 1e3 * p["seconds"]) for p in result["points"]]
    out().print(table("Step times", ("requests", "context", "query tokens", "ms"), rows))
    out().print(
        table("Drafting", ("requests", "ms"), [(d["requests"], 1e3 * d["seconds"]) for d in result["draft"]])
    )
    for outlier in result["outliers"]:
        out().print(f"outlier: {outlier}", markup=False, highlight=False)
    if result["table"] is not None:
        out().print(f"Table: {result['table']}", markup=False, highlight=False)
    out().print(f"Curve: {result['plot']}", markup=False, highlight=False)
