"""``adaverify bench``: measure the components, values first, each beside a plain baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from adaverify.bench.endtoend.places import FOLDER, require_apart
from adaverify.bench.surroundings import clocks, surroundings
from adaverify.bench.timing import DeviceTimer
from adaverify.bench.unfinished import UnfinishedError
from adaverify.blame import blaming_plugins
from adaverify.console import (
    CHECK_FAILED,
    REFUSED,
    emit_json,
    json_text,
    note,
    out,
    print_error,
    progress,
    reports_errors,
    say,
    table,
)
from adaverify.course import Course
from adaverify.devices import usable_device
from adaverify.drafting import require_known
from adaverify.files import require_folder, require_replaceable, write_text
from adaverify.options import Device, Dtype, Offline
from adaverify.session import discover
from adaverify.usage import path
from adaverify_contracts import (
    AdaverifyError,
    BenchmarkDescriptor,
    BenchmarkOptions,
    BenchmarkResult,
    Capability,
    CapabilityError,
    UnknownNameError,
    WrongValueError,
)
from adaverify_runtime import PluginManager, Registered
from adaverify_runtime import doctor as startup_report

ALL, ENDTOEND = "all", "endtoend"
STDOUT = Path("-")

Entry = Registered[BenchmarkDescriptor]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One benchmark: its result, or why there is none; ``wrong`` when a value differed.

    ``unfinished`` when there is a result, and something beside it failed for the ``reason``.
    """

    entry: Entry
    result: BenchmarkResult | None
    reason: str = ""
    wrong: bool = False
    unfinished: bool = False


@reports_errors
def bench(
    name: Annotated[
        str | None, typer.Argument(metavar="[BENCHMARK]", help="Which one, or all; lists them when omitted.")
    ] = None,
    device: Device = None,
    repeat: Annotated[int, typer.Option(min=1, help="Rounds in which the variants take turns.")] = 5,
    requests: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=65536,
            help="Measure this batch size; may be repeated. The benchmark's when omitted. Of endtoend, "
            "paired and capture follow it where --stage names them.",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Decode steps of each mode in step; 1000 alone, else 200. In endtoend: steps of a round of "
            "the arms, as many as verifying everything takes; half a second of them on a card.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model of step; the default model, or a tiny one if that is not to be had."),
    ] = None,
    drafter: Annotated[str | None, typer.Option(help="Drafter of step; n-gram when omitted.")] = None,
    dtype: Dtype = None,
    offline: Offline = False,
    stage: Annotated[
        list[str] | None,
        typer.Option(
            help="Run this part of endtoend: curve, arms, shares, paired, capture or plot; may be repeated. "
            "All of them when omitted."
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            parser=path,
            metavar="FOLDER",
            help="Keep results and plots of endtoend here; what is there is not measured again.",
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure kept cases again.")] = False,
    context: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1 << 20,
            help="KV length in endtoend, where its stage paired has its own; 2048 on a card.",
        ),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(
            "--json",
            parser=path,
            metavar="PATH",
            help="Write the results to this file; - prints one JSON value, nothing else.",
        ),
    ] = None,
) -> None:
    """Measure a component beside a plain baseline, in one run.

    Values are compared with a reference first; where one differs, no time is printed and the exit code is 1.
    """
    _require_places(name, json, folder)
    settings, plugins = discover()
    where = usable_device(settings.device.name if device is None else device)
    with blaming_plugins(plugins):
        report = startup_report(settings, where, plugins=plugins)
    capability = report.capability
    for line in report.warnings:
        note(line)
    if name is None:
        _list(plugins, capability)
        return
    chosen = _chosen(name, plugins, capability)
    _require_stages(chosen, stage or [])
    _require_names(plugins, model, drafter)
    if folder is not None or name == ENDTOEND:
        require_folder(folder or FOLDER, "--out")
    setup = surroundings(where, capability, repeat) | {"clocks_before": clocks(where)}
    with progress() as display:
        course = Course(display)

        def show(done: int, total: int, what: str) -> None:
            course.note(what)
            advance(done, total)

        options = BenchmarkOptions(
            device=where,
            capability=capability,
            timer=DeviceTimer(where, repeat),
            repeat=repeat,
            requests=tuple(sorted(set(requests or ()))),
            steps=steps,
            model=model,
            dtype=dtype,
            offline=offline,
            drafter=drafter,
            progress=show,
            stages=tuple(stage or ()),
            folder=folder,
            again=again,
            context=context,
        )
        outcomes = []
        for number, entry in enumerate(chosen, 1):
            advance = course.stage(entry.descriptor.name, number / len(chosen))
            outcomes.append(_run(entry, options, plugins, skip=name == ALL))
    setup["clocks_after"] = clocks(where)
    _report(setup, outcomes, json)
    if any(outcome.wrong for outcome in outcomes):
        raise typer.Exit(CHECK_FAILED)
    if any(outcome.unfinished for outcome in outcomes):
        raise typer.Exit(REFUSED)


def _require_places(name: str | None, json: Path | None, folder: Path | None) -> None:
    """Refuse outputs that cannot be written, or that would overwrite each other.

    Raises:
        AdaverifyError: says which.
    """
    if folder == STDOUT:
        raise AdaverifyError(
            "--out names no folder",
            arrived=str(folder),
            allowed="a folder; results of endtoend are several files",
            remedy="name one, ./- if it is to be called so; --json - prints the results",
        )
    if json is not None and json != STDOUT:
        if name == ENDTOEND:
            require_apart(json, folder)
        require_replaceable(json, "--json")


def _chosen(name: str, plugins: PluginManager, capability: Capability) -> list[Entry]:
    """Return the benchmarks that ``name`` stands for.

    Raises:
        UnknownNameError: nothing registered it.
        CapabilityError: the one that was named does not run on this device; gives every reason.
    """
    entries = plugins.benchmarks()
    if name == ALL:
        return [entry for entry in entries if not entry.descriptor.stages]
    for entry in entries:
        if entry.descriptor.name != name:
            continue
        if unmet := entry.descriptor.requirements.unmet(capability):
            raise CapabilityError(
                f"benchmark {name!r} does not run here: {'; '.join(unmet)}",
                arrived=capability.device_name,
                allowed="a device that meets all of its requirements",
                remedy="choose another with --device, or see `adaverify bench` for what runs here",
            )
        return [entry]
    known = (ALL, *(entry.descriptor.name for entry in entries))
    raise UnknownNameError("benchmark", name, known, plugins.not_loaded())


def _require_stages(chosen: Sequence[Entry], stages: Sequence[str]) -> None:
    """Refuse a stage that none of the benchmarks has.

    Raises:
        AdaverifyError: lists the stages there are.
    """
    known = {entry.descriptor.name: entry.descriptor.stages for entry in chosen if entry.descriptor.stages}
    for stage in stages:
        if any(stage in own for own in known.values()):
            continue
        listed = "; ".join(f"stages of {name}: {', '.join(own)}" for name, own in known.items())
        none = f"no stage: {', '.join(entry.descriptor.name for entry in chosen)} runs as a whole"
        raise AdaverifyError(
            f"no stage is named {stage!r}",
            arrived=stage,
            allowed=listed or none,
            remedy="choose one of these" if listed else "leave --stage out; endtoend has stages",
        )


def _require_names(plugins: PluginManager, model: str | None, drafter: str | None) -> None:
    """Refuse a model or a drafter that nothing registered, before the first benchmark runs.

    Raises:
        UnknownNameError: lists those that were discovered.
    """
    models = tuple(entry.descriptor.name for entry in plugins.models())
    if model is not None and model not in models:
        raise UnknownNameError("model", model, models, plugins.not_loaded())
    require_known(
        () if drafter is None else (drafter,),
        {entry.descriptor.name: entry.descriptor for entry in plugins.drafters()},
        plugins.not_loaded(),
    )


def _run(entry: Entry, options: BenchmarkOptions, plugins: PluginManager, *, skip: bool) -> Outcome:
    """Run one benchmark; with ``skip`` what it refuses is an outcome, and the others go on."""
    if unmet := entry.descriptor.requirements.unmet(options.capability):
        return Outcome(entry, None, f"skipped: {'; '.join(unmet)}")
    try:
        with blaming_plugins(plugins):
            return Outcome(entry, entry.descriptor.run(options))
    except WrongValueError as error:
        print_error(error)
        return Outcome(entry, None, f"wrong values: {error}", wrong=True)
    except UnfinishedError as error:
        print_error(error.cause)
        return Outcome(entry, error.result, f"unfinished: {error.cause}", unfinished=True)
    except AdaverifyError as error:
        if not skip:
            raise
        return Outcome(entry, None, f"refused: {error}")


def _report(setup: dict[str, Any], outcomes: Sequence[Outcome], where: Path | None) -> None:
    """Write the JSON value where it was asked for, and show tables unless that is standard output."""
    value = {"setup": setup, "benchmarks": [_as_dict(outcome) for outcome in outcomes]}
    if where == STDOUT:
        emit_json(value)
        return
    if where is not None:
        write_text(where, json_text(value, indent=1) + "\n", "--json")
    for outcome in outcomes:
        _render(outcome)
    state = setup["clocks_before"] or {}
    parts = [setup["device_name"], f"torch {setup['torch']}", f"commit {setup['commit'] or 'unknown'}"]
    if state:
        parts.insert(1, f"SM clock {state['clocks.sm']}")
    say(", ".join(parts))
    if where is not None:
        say(f"JSON: {where}")


def _as_dict(outcome: Outcome) -> dict[str, Any]:
    entry = outcome.entry
    found = outcome.result.as_dict() if outcome.result is not None else {}
    origin = f"{entry.owner} {entry.version}".strip()
    reason = outcome.reason or None
    return {"name": entry.descriptor.name, "from": origin, "measured": bool(found), "reason": reason} | found


def _render(outcome: Outcome) -> None:
    descriptor, result = outcome.entry.descriptor, outcome.result
    title = f"{descriptor.name}: {descriptor.description}"
    if result is None:
        say(title, "bold")
        say(outcome.reason, "bold red" if outcome.wrong else "yellow")
        out().print()
        return
    shown = [
        place
        for place, column in enumerate(result.columns)
        # A CPU has no device times: their columns would be dashes.
        if column.shown and any(row[place] is not None for row in result.rows)
    ]
    heads = [result.columns[place].name.replace("_", " ") for place in shown]
    out().print(table(title, heads, [[row[place] for place in shown] for row in result.rows]))
    for label, lines in (("checked", result.checks), ("note", result.notes)):
        for line in lines:
            say(f"{label}: {line}")
    say(f"data: {result.data}; {result.cache}")
    out().print()


def _list(plugins: PluginManager, capability: Capability) -> None:
    rows = [
        (
            entry.descriptor.name,
            entry.descriptor.description,
            entry.owner,
            "; ".join(entry.descriptor.requirements.unmet(capability)) or "yes",
        )
        for entry in plugins.benchmarks()
    ]
    out().print(table("Benchmarks", ("name", "what it measures", "from", "runs here"), rows))
