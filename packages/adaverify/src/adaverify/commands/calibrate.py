"""``adaverify calibrate``: fit confidences to what was accepted, and judge them by prompts held out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from adaverify.console import emit_json, note, out, progress, reports_errors, say, table
from adaverify.course import LOADED, Course
from adaverify.files import require_apart, require_writable
from adaverify.options import (
    Concurrency,
    Device,
    Drafter,
    DraftTokens,
    Dtype,
    Json,
    Model,
    Offline,
    Plot,
    Tokens,
)
from adaverify.outset import MODEL, Choice
from adaverify.prompting import encode_prompts, take_prompts
from adaverify.recording import Recording, read_recordings, record_run
from adaverify.running import require_trace, sampling_of
from adaverify.session import load_session, prepare
from adaverify.usage import LARGEST_SEED, finite_temperature, path
from adaverify_contracts import AdaverifyError, CalibrationError
from adaverify_replay import plot_reliability, require_plottable
from adaverify_verification import (
    CALIBRATED,
    Gathered,
    Study,
    calibration_state,
    calibration_subject,
    cross_study,
    gather,
    save_state,
    study,
)
from adaverify_verification.calibration_offline import TEMPERATURES
from adaverify_verification.calibration_study import FOLDS, SIGNALS

# Half of what docs/measurements/2026-11-30-calibration.md took: some 600 rows of prompt lookup.
_HUMAN_EVAL_COUNT = 32
# What only a run of its own reads.
_RUN_ONLY = (
    "prompts",
    "count",
    "concurrency",
    "tokens",
    "draft_tokens",
    "temperature",
    "model",
    "drafter",
    "device",
    "dtype",
    "chat",
    "offline",
    "record",
)
_EDGES = (float(TEMPERATURES[0]), float(TEMPERATURES[-1]))


def _signal(name: str) -> str:
    if name not in SIGNALS:
        raise typer.BadParameter(f"{name!r} has nothing to fit; allowed: {', '.join(SIGNALS)}")
    return name


def _share(value: float | None) -> float | None:
    if value is not None and not 0.0 < value < 1.0:
        raise typer.BadParameter(f"{value} is no share; allowed: above 0 and below 1")
    return value


@reports_errors
def calibrate(
    context: typer.Context,
    traces: Annotated[
        list[Path] | None,
        typer.Argument(
            parser=path,
            metavar="[TRACES]...",
            help="Traces of fully verified steps; without one the prompts are run now.",
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            parser=path, metavar="PATH", help="Text (one prompt a line) or JSONL; HumanEval when omitted."
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="How many prompts to take; 32 of HumanEval, all of a file.")
    ] = None,
    concurrency: Concurrency = None,
    tokens: Tokens = 64,
    draft_tokens: DraftTokens = None,
    temperature: Annotated[
        float, typer.Option(callback=finite_temperature, help="0 is greedy; otherwise 1e-6 .. 1e6.")
    ] = 0.0,
    seed: Annotated[
        int | None, typer.Option(min=0, max=LARGEST_SEED, help="Seed of sampled runs and of the split.")
    ] = None,
    signal: Annotated[
        str,
        typer.Option(
            callback=_signal, help="Signal to fit: calibrated (logistic) or temperature-scaled (STS)."
        ),
    ] = CALIBRATED.name,
    folds: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=1000,
            help="Fits that judge: each prompt is judged by one that did not see it. "
            f"{FOLDS}; the file is fitted to all prompts.",
        ),
    ] = None,
    held_out: Annotated[
        float | None,
        typer.Option(
            callback=_share,
            help="In place of folds: a share of the prompts that judges and is never fitted to.",
        ),
    ] = None,
    model: Model = MODEL,
    drafter: Drafter = None,
    device: Device = None,
    dtype: Dtype = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put each prompt into the chat template.")] = False,
    offline: Offline = False,
    record: Annotated[
        Path | None,
        typer.Option(
            parser=path,
            metavar="PATH",
            help="Also keep the run as a trace in this file, to calibrate again from.",
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            parser=path,
            metavar="PATH",
            help="The calibration file; `run --calibration` and `profile --calibration` read it.",
        ),
    ] = Path("calibration.json"),
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Fit a signal to what the target accepts, greedy apart from sampled, and write a calibration file.

    Figures are of prompts that were not fitted to: calibration error, ranking and Brier score of the survival
    of each position, before and after.
    """
    if folds is not None and held_out is not None:
        raise typer.BadParameter("--folds judges by all prompts, --held-out by some; allowed: one of them")
    read = {"a trace": traces or [], "--prompts": [] if prompts is None else [prompts]}
    require_apart({"--output": output, "--plot": plot, "--record": record}, read)
    require_writable(output, "--output")
    if plot is not None:
        require_plottable(plot)
        require_writable(plot, "--plot")
    if traces:
        _refuse_run_options(context)
        recording = read_recordings(traces)
    else:
        if record is not None:
            require_writable(record, "--record")
            require_trace(record, "--record")
        choice = Choice(model, drafter, device, dtype, draft_tokens, seed, offline, uncalibrated=True)
        recording = _run(choice, prompts, count, concurrency, tokens, temperature, chat, record)
    gathered = gather(recording.records)
    judging = (
        partial(cross_study, folds=folds or FOLDS) if held_out is None else partial(study, held_out=held_out)
    )
    studies = _studies(gathered, partial(judging, signal=signal, seed=seed or 0), traced=bool(traces))
    width = len(next(iter(studies.values())).before)
    subject = calibration_subject(recording.target, recording.drafter)
    _save(output, calibration_state(studies, signal, subject, width))
    if plot is not None:
        plot_reliability(
            {name: {"before": one.before, "after": one.after} for name, one in studies.items()}, plot
        )
    report = {
        "setup": {
            "target": recording.target,
            "drafter": recording.drafter,
            "draft_tokens": width,
            **recording.source,
        },
        "signal": signal,
        "left_out": dict(gathered.left_out),
        "regimes": {name: one.as_dict() for name, one in studies.items()},
        "calibration": str(output),
        "plot": None if plot is None else str(plot),
    }
    if json:
        emit_json(report)
    else:
        _render(report, studies)
    _say_doubts(studies)


def _run(
    choice: Choice,
    prompts: Path | None,
    count: int | None,
    concurrency: int | None,
    tokens: int,
    temperature: float,
    chat: bool,
    record: Path | None,
) -> Recording:
    texts, places = take_prompts(prompts, _HUMAN_EVAL_COUNT if prompts is None and count is None else count)
    sampling = sampling_of(len(texts), tokens, temperature, choice.seed)
    outset = prepare(choice)
    _require_labels(len(texts), outset.options.draft_tokens)
    at_once = min(concurrency or outset.concurrency, len(texts))
    outset.require_sizes(at_once, 1 + tokens)
    with progress() as display:
        course = Course(display)
        session = load_session(outset, course.stage(f"loading {choice.model}", LOADED))
        ids = encode_prompts(session, texts, places, tokens, chat)
        session = session.sized(at_once, max(map(len, ids)) + tokens)
        run = {
            "concurrency": at_once,
            "tokens": tokens,
            "temperature": temperature,
            "seed": session.options.seed,
            "prompts": len(ids),
        }
        return record_run(
            session,
            ids,
            sampling,
            run,
            trace=record,
            advance=course.stage("running, everything verified"),
        )


def _studies(gathered: Gathered, judging: Callable[..., Study], *, traced: bool) -> dict[str, Study]:
    """Return the study of each regime that has enough prompts; says which has not."""
    if not gathered.regimes:
        raise _no_drafts(dict(gathered.left_out) or "no records", traced=traced)
    studies: dict[str, Study] = {}
    refused: list[CalibrationError] = []
    for name, rows in gathered.regimes.items():
        try:
            studies[name] = judging(name, rows)
        except CalibrationError as error:
            refused.append(error)
            note(f"{name} requests are left out: {error}")
    if not studies:
        raise refused[0]
    return studies


def _require_labels(prompts: int, draft_tokens: int) -> None:
    """Refuse a run whose labels cannot be fitted to, whatever they turn out to be."""
    if draft_tokens == 0:
        raise _no_drafts("K = 0", traced=False)
    if prompts < 2:
        raise CalibrationError(
            "one prompt cannot be split into one to fit on and one to judge by",
            arrived=f"{prompts} prompt",
            allowed="at least 2 prompts",
            remedy="give more prompts",
        )


def _no_drafts(arrived: object, *, traced: bool) -> CalibrationError:
    return CalibrationError(
        "there are no drafts to calibrate on",
        arrived=arrived,
        allowed="steps that verified every draft, recorded by a version that keeps rows",
        remedy="leave out the trace: `adaverify calibrate` then records a run itself"
        if traced
        else "give more or longer prompts, more --tokens, and --draft-tokens of 1 or more",
    )


def _refuse_run_options(context: typer.Context) -> None:
    """Refuse options of a run beside a trace: nothing of them would be used."""
    # By name: newer versions of typer bring a click of their own.
    sources = {name: getattr(context.get_parameter_source(name), "name", "") for name in _RUN_ONLY}
    given = [name for name, source in sources.items() if source == "COMMANDLINE"]
    if given:
        raise AdaverifyError(
            "a trace is calibrated on as it is, without a run",
            arrived=", ".join(f"--{name.replace('_', '-')}" for name in given),
            allowed="a trace, or the options of a run",
            remedy="leave out one of them",
        )


def _save(path: Path, state: dict[str, Any]) -> None:
    try:
        save_state(path, state)
    except OSError as error:
        raise CalibrationError(
            f"the calibration file cannot be written: {error.strerror}",
            arrived=str(path),
            allowed="a file in a writable folder",
            remedy="choose another --output",
        ) from error


def _render(report: dict[str, Any], studies: dict[str, Study]) -> None:
    setup = report["setup"]
    named = f"{setup['target']}, drafter {setup['drafter']}, K = {setup['draft_tokens']}"
    say(f"{named}, signal {report['signal']}")
    for name, one in studies.items():
        out().print()
        names = list(one.parameters)
        columns = (
            "position",
            *names,
            "rows",
            "accepted",
            "ECE",
            "after",
            "floor",
            "AUC",
            "after",
            "Brier",
            "after",
        )
        if "slope" in names:
            names.remove("slope")
            say(f"{name}: slope {one.parameters['slope'][0]:.3f}, shared by all positions")
            columns = tuple(column for column in columns if column != "slope")
        rows = [
            (
                before.position,
                *(one.parameters[parameter][k] for parameter in names),
                before.rows,
                before.observed,
                before.ece,
                after.ece,
                after.floor,
                before.auc,
                after.auc,
                before.brier,
                after.brier,
            )
            for k, (before, after) in enumerate(zip(one.before, one.after, strict=True))
        ]
        out().print(table(_title(name, one), columns, rows))
    out().print()
    say(
        "Of the survival up to each position against the accepted prefix, before and after. ECE: expected "
        "calibration error; floor: what chance alone leaves of it with so many rows. AUC: ranking, 0.5 is "
        "none. Brier: mean squared error.",
        "dim",
    )
    for reason, number in report["left_out"].items():
        say(f"Left out: {number} rows, {reason}.")
    say(f"Calibration: {report['calibration']}")
    if report["plot"] is not None:
        say(f"Reliability diagrams: {report['plot']}")


def _title(name: str, one: Study) -> str:
    """Return what was judged by what; the table's title."""
    judged = f"{name}: {one.held_out[1]} drafts of {one.held_out[0]} prompts"
    if one.folds > 1:
        return f"{judged}, each by one of {one.folds} fits that did not see it"
    return f"{judged} held out, fitted to {one.fitted[1]} of {one.fitted[0]}"


def _say_doubts(studies: dict[str, Study]) -> None:
    for name, one in studies.items():
        if one.short:
            positions = ", ".join(map(str, one.short))
            note(f"{name}: positions {positions} have fewer than 8 accepted or 8 rejected labels to fit to")
        edge = [k + 1 for k, value in enumerate(one.parameters.get("temperature", ())) if value in _EDGES]
        if edge:
            positions = ", ".join(map(str, edge))
            note(
                f"{name}: positions {positions} took the last temperature tried, as a shifted head does: it "
                "is squeezed and not repaired. Leave out --signal"
            )
        pairs = [
            (before.ece, after.ece)
            for before, after in zip(one.before, one.after, strict=True)
            if before.ece is not None and after.ece is not None
        ]
        if pairs and sum(after - before for before, after in pairs) > 0:
            note(f"{name}: the calibration error of held-out prompts has not fallen; use more prompts")
