"""``adaverify plugins``: what is installed, what became of it, and what it registered."""

from __future__ import annotations

from typing import Annotated

import typer

from adaverify.console import emit_json, out, reports_errors, table
from adaverify_runtime import doctor as build_report
from adaverify_runtime import read_settings

_SINGULAR = {
    "strategies": "strategy",
    "backends": "graph backend",
    "signals": "signal",
    "policies": "policy",
    "drafters": "drafter",
    "models": "model",
}


@reports_errors
def plugins(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")] = False,
) -> None:
    """List the discovered plugins with their outcome and everything each of them registered."""
    report = build_report(read_settings()).as_dict()
    registered: dict[str, list[str]] = {}
    for kind in _SINGULAR:
        for item in report[kind]:
            registered.setdefault(item["owner"], []).append(f"{_SINGULAR[kind]} {item['name']}")
    rows = [{**plugin, "registered": registered.get(plugin["owner"], [])} for plugin in report["plugins"]]
    if json:
        emit_json(rows)
        return
    out().print(
        table(
            "Plugins",
            ("plugin", "distribution", "version", "outcome", "reason", "registered"),
            [
                (
                    row["name"],
                    row["owner"],
                    row["version"],
                    row["outcome"],
                    row["reason"],
                    "\n".join(row["registered"]),
                )
                for row in rows
            ],
        )
    )
