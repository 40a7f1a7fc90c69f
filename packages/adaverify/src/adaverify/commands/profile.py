"""``adaverify profile``: measure step times on this machine and draw the cost curve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from adaverify.console import CHECK_FAILED, emit_json, note, out, progress, reports_errors, say, table
from adaverify.course import LOADED, Course
from adaverify.files import require_apart, require_writable
from adaverify.options import Calibration, Device, Drafter, DraftTokens, Dtype, Json, Model, Offline
from adaverify.outset import MODEL, Choice
from adaverify.session import (
    Session,
    load_session,
    measure_table,
    prepare,
    profile_command,
    store_table,
    table_path,
)
from adaverify.usage import path
from adaverify_replay import plot_cost_curve, require_plottable


@reports_errors
def profile(
    concurrency: Annotated[int | None, typer.Option(min=1, help="Requests that run at once; 4.")] = None,
    context: Annotated[
        int,
        typer.Option(min=16, max=1 << 30, help="Longest sequence to price, rounded up to a power of two."),
    ] = 512,
    draft_tokens: DraftTokens = None,
    repeats: Annotated[
        int,
        typer.Option(min=1, help="Measured rounds; below 3 a busy machine cannot be told from a quiet one."),
    ] = 5,
    model: Model = MODEL,
    drafter: Drafter = None,
    calibration: Calibration = None,
    device: Device = None,
    dtype: Dtype = None,
    offline: Offline = False,
    plot: Annotated[
        Path,
        typer.Option(parser=path, metavar="PATH", help="Draw the curve to this .png, .svg or .pdf file."),
    ] = Path("cost-curve.png"),
    store: Annotated[
        Path | None,
        typer.Option(
            "--table", parser=path, metavar="PATH", help="Where to store the table; the cache when omitted."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Measure decode steps by tokens, requests and context; store the table and draw it.

    Exits with 1 when the machine was too busy: the table is then drawn, and stored only where --table says.
    """
    require_plottable(plot)
    require_apart(
        {"--plot": plot, "--table": store}, {"--calibration": [] if calibration is None else [calibration]}
    )
    require_writable(plot, "--plot")
    if store is not None:
        require_writable(store, "--table")
    outset = prepare(Choice(model, drafter, device, dtype, draft_tokens, None, offline, calibration))
    at_once = concurrency or outset.concurrency
    outset.require_sizes(at_once, context)
    with progress() as display:
        course = Course(display)
        session = load_session(outset, course.stage(f"loading {model}", LOADED))
        session = session.sized(at_once, context)
        cost_table = measure_table(session, course.stage("measuring step times"), repeats=repeats)
    stored = store or (None if cost_table.disturbed else _default_store(session))
    if stored is not None:
        store_table(cost_table, stored)
    drawn = plot_cost_curve(cost_table, plot)
    result = {
        "fingerprint": dict(session.fingerprint.pairs),
        "points": [
            {"tokens": tokens, "requests": curve.requests, "context": curve.context, "seconds": seconds}
            for curve in cost_table.curves
            for tokens, seconds in zip(curve.tokens, curve.measured, strict=True)
        ],
        "draft": [{"requests": count, "seconds": seconds} for count, seconds in cost_table.draft],
        "bare": [
            {"requests": count, "context": context, "seconds": seconds}
            for count, _, context, seconds in cost_table.bare
        ],
        "outliers": [str(outlier) for outlier in cost_table.outliers],
        "disturbed": list(cost_table.disturbed),
        "table": None if stored is None else str(stored),
        "plot": str(drawn),
    }
    if json:
        emit_json(result)
    else:
        _render(result)
    if cost_table.disturbed:
        where = "not stored" if store is None else f"stored in {store} because --table says so"
        share = f"{len(cost_table.disturbed)} of {len(cost_table.points)} points"
        note(
            f"the machine was busy: {share} never came to rest. The table is {where}. "
            f"To do: quieten the machine and run `{profile_command(session)}`"
        )
        raise typer.Exit(CHECK_FAILED)


def _default_store(session: Session) -> Path | None:
    """Return the table's place in the cache; None where the user named a file, which is theirs to replace."""
    named = session.settings.paths.cost_table
    if named is None:
        return table_path(session)
    note(f"not stored: ADAVERIFY_PATHS_COST_TABLE names {named} to read; pass --table to write it")
    return None


def _render(result: dict[str, Any]) -> None:
    rows = [(p["requests"], p["context"], p["tokens"], 1e3 * p["seconds"]) for p in result["points"]]
    out().print(table("Step times", ("requests", "context", "query tokens", "ms"), rows))
    out().print()
    out().print(
        table("Drafting", ("requests", "ms"), [(d["requests"], 1e3 * d["seconds"]) for d in result["draft"]])
    )
    out().print()
    if result["bare"]:
        bare = [(b["requests"], b["context"], 1e3 * b["seconds"]) for b in result["bare"]]
        out().print(table("Steps that draft nothing", ("requests", "context", "ms"), bare))
        out().print()
    for outlier in result["outliers"]:
        say(f"outlier: {outlier}")
    for unquiet in result["disturbed"]:
        say(f"disturbed: {unquiet}")
    if result["table"] is not None:
        say(f"Table: {result['table']}")
    say(f"Curve: {result['plot']}")
