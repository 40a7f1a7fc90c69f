"""``adaverify plugins``: what is installed, what became of it, and what it registered."""

from __future__ import annotations

from typing import Any

from adaverify.console import emit_json, out, reports_errors, table
from adaverify.options import Json
from adaverify.session import discover, usable_device
from adaverify_runtime import doctor as startup_report

_KINDS = {
    "strategies": "decode strategies",
    "backends": "graph backends",
    "signals": "signals",
    "policies": "policies",
    "drafters": "drafters",
    "models": "models",
    "benchmarks": "benchmarks",
}


@reports_errors
def plugins(json: Json = False) -> None:
    """List the discovered plugins with their outcome and everything each of them registered."""
    settings, found = discover()
    report = startup_report(settings, usable_device(settings.device.name), plugins=found).as_dict()
    rows = [{**plugin, "registered": _registered(report, plugin["owner"])} for plugin in report["plugins"]]
    if json:
        emit_json(rows)
        return
    out().print(
        table(
            "Plugins",
            ("plugin", "from", "outcome", "registered, or the reason why not"),
            [(row["name"], f"{row['owner']} {row['version']}", row["outcome"], _last(row)) for row in rows],
        )
    )


def _registered(report: dict[str, Any], owner: str) -> dict[str, list[str]]:
    names = {kind: [item["name"] for item in report[kind] if item["owner"] == owner] for kind in _KINDS}
    return {kind: found for kind, found in names.items() if found}


def _last(row: dict[str, Any]) -> str:
    if row["outcome"] != "loaded":
        return str(row["reason"])
    lines = [f"{_KINDS[kind]}: {', '.join(names)}" for kind, names in row["registered"].items()]
    return "\n".join(lines) or "nothing but probes or observers"
