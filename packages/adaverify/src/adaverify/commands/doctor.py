"""``adaverify doctor``: what this device can do and what would be chosen, with every reason."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape

from adaverify.console import CHECK_FAILED, cell, emit_json, out, reports_errors, table
from adaverify_runtime import doctor as build_report
from adaverify_runtime import read_settings


@reports_errors
def doctor(
    device: Annotated[
        str | None, typer.Option(help="Torch device to examine, such as cpu or cuda:0.")
    ] = None,
    assume: Annotated[
        str | None, typer.Option(help="Take the device for this architecture word instead of probing one.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")] = False,
) -> None:
    """Show every device fact, kernel, plugin and strategy, chosen or not, with all reasons at once.

    Exits with 1 when no verifier can be assembled here.
    """
    report = build_report(read_settings(), device=device, assume=assume).as_dict()
    if json:
        emit_json(report)
    else:
        _render(report)
    if report["problems"]:
        raise typer.Exit(CHECK_FAILED)


def _render(report: dict[str, Any]) -> None:
    capability = report["capability"]
    facts = [(key, capability[key]) for key in ("device_type", "architecture", "device_name")]
    facts += [("processors", capability["processors"]), ("memory_bytes", capability["memory_bytes"])]
    facts += [("compute_capability", capability["compute_capability"]), ("assumed", capability["assumed"])]
    facts += [(f"version of {name}", version) for name, version in capability["versions"]]
    out().print(table("Device", ("fact", "value"), [(name, cell(value)) for name, value in facts]))
    out().print(
        table(
            "Kernels",
            ("kernel", "version", "level", "reason"),
            [(k["name"], k["version"], k["level"].lower(), k["reason"]) for k in capability["kernels"]],
        )
    )
    out().print(
        table(
            "Plugins",
            ("plugin", "distribution", "outcome", "reason"),
            [
                (p["name"], f"{p['owner']} {p['version']}", p["outcome"], p["reason"])
                for p in report["plugins"]
            ],
        )
    )
    out().print(table("Decode strategies", _CANDIDATE, [_candidate(item) for item in report["strategies"]]))
    out().print(
        table(
            "Graph backends",
            ("backend", "distribution", "priority", "chosen", "reasons against"),
            [
                (b["name"], b["owner"], b["priority"], b["chosen"], _reasons(b["reasons"]))
                for b in report["backends"]
            ],
        )
    )
    for kind in ("signals", "policies", "drafters", "models"):
        rows = [
            (item["name"], item["owner"], ", ".join(f"{k} {v}" for k, v in item["facts"].items()))
            for item in report[kind]
        ]
        out().print(table(kind.capitalize(), ("name", "distribution", "declares"), rows))
    for title, style in (("notes", "cyan"), ("warnings", "yellow"), ("problems", "bold red")):
        for line in report[title]:
            out().print(f"[{style}]{title[:-1]}[/]: {escape(line)}", highlight=False)
    if not report["problems"]:
        out().print(f"A verifier can be assembled here in mode {report['mode']}.", highlight=False)


_CANDIDATE = ("strategy", "role", "graphs", "evidence", "chosen", "reasons against")


def _candidate(item: dict[str, Any]) -> tuple[object, ...]:
    return (
        f"{item['name']}\n{item['owner']} {item['version']}\npriority {item['priority']}",
        item["role"],
        item["graph_support"].lower(),
        item["evidence"],
        item["chosen"],
        _reasons(item["reasons"]),
    )


def _reasons(reasons: list[str]) -> str:
    return "\n".join(reasons) if reasons else "none"
