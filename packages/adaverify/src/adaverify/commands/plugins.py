"""``adaverify plugins``: what is installed and what it registered; a new project; what serves which chip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from adaverify.blame import blaming_plugins
from adaverify.console import EXIT_CODES, emit_json, note, out, reports_errors, say, table
from adaverify.devices import usable_device
from adaverify.options import Json
from adaverify.scaffold import Kind, Project, write_project
from adaverify.session import discover
from adaverify.support import support_matrix
from adaverify.usage import path
from adaverify_runtime import doctor as startup_report
from adaverify_runtime import examine_plugins, plugin_warnings, read_settings
from adaverify_runtime.plugins import Registered

_KINDS = {
    "strategies": "decode strategies",
    "backends": "graph backends",
    "signals": "signals",
    "policies": "policies",
    "drafters": "drafters",
    "models": "models",
    "benchmarks": "benchmarks",
}

plugins = typer.Typer(invoke_without_command=True, epilog=EXIT_CODES)


@plugins.callback()
@reports_errors
def listing(context: typer.Context, json: Json = False) -> None:
    """List the discovered plugins with their outcome and everything each of them registered.

    Ends with 3, the list printed, where one of them breaks the contract: no other command starts then.
    """
    if context.invoked_subcommand is not None:
        if json:
            raise typer.BadParameter(f"--json belongs behind {context.invoked_subcommand}")
        return
    settings = read_settings()
    found, refusal = examine_plugins(settings)
    with blaming_plugins(found):
        report = startup_report(settings, usable_device(settings.device.name), plugins=found).as_dict()
    for line in report["warnings"]:
        note(line)
    rows = [{**plugin, "registered": _registered(report, plugin["owner"])} for plugin in report["plugins"]]
    if json:
        emit_json(rows)
    else:
        columns = ("plugin", "from", "outcome", "registered, or the reason why not")
        cells = [
            (row["name"], f"{row['owner']} {row['version']}", row["outcome"], _last(row)) for row in rows
        ]
        out().print(table("Plugins", columns, cells))
    if refusal is not None:
        # What keeps every other command from starting; the list is for finding out.
        raise refusal


@plugins.command(epilog=EXIT_CODES)
@reports_errors
def new(
    name: Annotated[str, typer.Argument(help="Name of the plugin, such as cedar; users type it.")],
    kind: Annotated[Kind, typer.Option(help="What the plugin registers.")] = Kind.STRATEGY,
    into: Annotated[
        Path,
        typer.Option(parser=path, metavar="PATH", help="Existing folder in which adaverify-NAME is made."),
    ] = Path(),
    json: Json = False,
) -> None:
    """Write a complete project for a new plugin: it installs, runs and passes its tests as it is."""
    project = Project(name, kind)
    folder = write_project(project, into, _owners(kind))
    files = sorted(project.render())
    if json:
        emit_json({"folder": str(folder), "kind": kind.value, "files": files})
        return
    say(f"Wrote {folder}: a {kind.value} called {name}.", "bold")
    for file in files:
        say(f"  {file}")
    say("Next, in that folder:")
    say("  python -m pip install --editable '.[test]'")
    say("  python -m pytest")
    if kind is Kind.STRATEGY:
        say(f"  pytest --adaverify-conformance {name}")


@plugins.command(epilog=EXIT_CODES)
@reports_errors
def support(json: Json = False) -> None:
    """Show which strategy serves which architecture, and how far that was proven, as the plugins say."""
    settings, found = discover()
    for line in (*settings.warnings, *plugin_warnings(found)):
        note(line)
    matrix = support_matrix(found)
    if json:
        emit_json(asdict(matrix))
        return
    columns = ("strategy", *matrix.architectures, "evidence", "graphs", "device lengths", "plugin")
    rows = [
        (
            row.strategy,
            *row.levels.values(),
            row.evidence,
            row.graph_support,
            row.device_lengths,
            row.plugin,
        )
        for row in matrix.rows
    ]
    out().print(table("Support", columns, rows))
    say("any: admitted without being named, so not proven there; -: refused.")


def _owners(kind: Kind) -> dict[str, str]:
    """Return who registers which name of a kind."""
    _, found = discover()
    entries: dict[Kind, Sequence[Registered[Any]]] = {
        Kind.STRATEGY: found.decode_strategies(),
        Kind.SIGNAL: found.signals(),
        Kind.POLICY: found.policies(),
    }
    return {entry.descriptor.name: entry.owner for entry in entries[kind]}


def _registered(report: dict[str, Any], owner: str) -> dict[str, list[str]]:
    names = {kind: [item["name"] for item in report[kind] if item["owner"] == owner] for kind in _KINDS}
    return {kind: found for kind, found in names.items() if found}


def _last(row: dict[str, Any]) -> str:
    if row["outcome"] != "loaded":
        return str(row["reason"])
    lines = [f"{_KINDS[kind]}: {', '.join(names)}" for kind, names in row["registered"].items()]
    return "\n".join(lines) or "nothing but probes or observers"
