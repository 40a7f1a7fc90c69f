"""``adaverify doctor``: what this device can do and what would be chosen, with every reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from adaverify.blame import blaming_plugins
from adaverify.commands.bridge import bridge_report, render_bridge
from adaverify.console import CHECK_FAILED, cell, emit_json, out, reports_errors, say, table
from adaverify.devices import usable_device
from adaverify.files import require_writable
from adaverify.options import Json
from adaverify.running import require_trace
from adaverify.session import discover, load_named
from adaverify.support import require_kernels
from adaverify_contracts import AdaverifyError
from adaverify_runtime import Settings
from adaverify_runtime import doctor as startup_report


@reports_errors
def doctor(
    device: Annotated[
        str | None, typer.Option(help="Torch device to examine, such as cpu or cuda:0.")
    ] = None,
    assume: Annotated[
        str | None,
        typer.Option(help="Take the device for this architecture word instead of probing one."),
    ] = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option(help="Take this kernel as executed on the assumed device; may be repeated."),
    ] = None,
    vllm: Annotated[
        bool, typer.Option("--vllm", help="Examine the bridge into vLLM instead; imports vLLM.")
    ] = False,
    json: Json = False,
) -> None:
    """Show every device fact, kernel, plugin and strategy, chosen or not, with all reasons at once.

    Exits with 1 when no verifier can be assembled here, or with --vllm when the bridge cannot act.
    """
    if vllm:
        if device or assume or kernel:
            raise typer.BadParameter("--vllm examines what is installed here: no device is named or assumed")
        _bridge(json)
        return
    if kernel and assume is None:
        raise typer.BadParameter("--kernel belongs to --assume: kernels of a real device are executed")
    settings, plugins = discover()
    if device is None:
        device = "cpu" if assume is not None else settings.device.name
    examined = usable_device(device)
    require_kernels(kernel or (), plugins)
    with blaming_plugins(plugins):
        found = startup_report(
            settings, examined, assume, kernels=tuple(dict.fromkeys(kernel or ())), plugins=plugins
        )
    report = replace(found, problems=(*found.problems, *_files(settings))).as_dict()
    if json:
        emit_json(report)
    else:
        _render(report)
    if report["problems"]:
        raise typer.Exit(CHECK_FAILED)


def _files(settings: Settings) -> tuple[str, ...]:
    """Return why a file that the settings name keeps ``run`` from starting.

    Whether a table is of this setup is not asked: that depends on the model. The start-up report judges the
    files that a verifier is assembled from.
    """
    table, trace = settings.paths.cost_table, settings.paths.trace
    problems = []
    try:
        if table is not None:
            load_named(table, None)
    except AdaverifyError as error:
        problems.append(str(error))
    try:
        if trace is not None:
            require_writable(trace, "ADAVERIFY_PATHS_TRACE")
            require_trace(trace, "ADAVERIFY_PATHS_TRACE")
    except AdaverifyError as error:
        problems.append(str(error))
    return tuple(problems)


def _bridge(as_json: bool) -> None:
    report = bridge_report("vllm")
    if as_json:
        emit_json(report)
    else:
        render_bridge(report)
    if report["problems"]:
        raise typer.Exit(CHECK_FAILED)


def _render(report: dict[str, Any]) -> None:
    tables = (
        table("Device", ("fact", "value"), _facts(report["capability"])),
        table(
            "Kernels",
            ("kernel", "version", "level", "reason"),
            [
                (k["name"], k["version"], _level(k, report["capability"]["assumed"]), k["reason"])
                for k in report["capability"]["kernels"]
            ],
        ),
        table(
            "Plugins",
            ("plugin", "from", "outcome", "reason"),
            [
                (p["name"], f"{p['owner']} {p['version']}", p["outcome"], p["reason"])
                for p in report["plugins"]
            ],
        ),
        table("Decode strategies", _STRATEGY, [_strategy(item) for item in report["strategies"]]),
        table(
            "Graph backends",
            ("backend", "from", "priority", "chosen", "reasons against"),
            [(b["name"], b["owner"], b["priority"], b["chosen"], _reasons(b)) for b in report["backends"]],
        ),
        *(_components(kind, report[kind]) for kind in ("signals", "policies", "drafters", "models")),
    )
    for one in tables:
        out().print(one)
        out().print()
    for title, style in (("notes", "cyan"), ("warnings", "yellow"), ("problems", "bold red")):
        for line in report[title]:
            say(f"{title[:-1]}: {line}", style)
    if report["problems"]:
        return
    if report["capability"]["assumed"]:
        word = report["capability"]["architecture"]
        say(f"On a device that is what was assumed, {word}, mode {report['mode']} would run.")
        say("Nothing was proven here: run doctor on the device itself.")
    else:
        say(f"A verifier can be assembled here in mode {report['mode']}.")


def _facts(capability: dict[str, Any]) -> list[tuple[str, str]]:
    names = (
        "device_type",
        "architecture",
        "device_name",
        "processors",
        "memory_bytes",
        "compute_capability",
        "assumed",
    )
    facts = [(name.replace("_", " "), cell(capability[name])) for name in names]
    return facts + [(f"version of {name}", version) for name, version in capability["versions"]]


_STRATEGY = ("strategy", "role", "graphs", "evidence", "prio", "chosen", "reasons against")


def _strategy(item: dict[str, Any]) -> tuple[object, ...]:
    return (
        f"{item['name']}\n{item['owner']}",
        item["role"],
        item["graph_support"].lower(),
        item["evidence"],
        item["priority"],
        item["chosen"],
        _reasons(item) if item["reasons"] else item["behind"] or "none",
    )


def _level(kernel: dict[str, Any], assumed: bool) -> str:
    """Return the level in words: on a device that is only assumed, nobody found a kernel absent."""
    return "not run" if assumed and kernel["level"] == "ABSENT" else str(kernel["level"].lower())


def _components(kind: str, items: list[dict[str, Any]]) -> Any:
    rows = [
        (item["name"], item["owner"], ", ".join(f"{name} {value}" for name, value in item["facts"].items()))
        for item in items
    ]
    return table(kind.capitalize(), ("name", "from", "declares"), rows)


def _reasons(item: dict[str, Any]) -> str:
    return "\n".join(item["reasons"]) or "none"
