"""``adaverify run``: prompts in, text out, the modes compared on the same prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from adaverify.affordable import job_steps
from adaverify.console import CHECK_FAILED, count_of, emit_json, err, note, progress, reports_errors, table
from adaverify.course import LOADED, Course
from adaverify.crowding import CROWDED, crowding, load_average
from adaverify.files import require_writable
from adaverify.loaded import failures_in_words
from adaverify.options import (
    MODES,
    Calibration,
    Concurrency,
    Device,
    Drafters,
    DraftTokens,
    Dtype,
    Json,
    Model,
    Modes,
    Offline,
    Tokens,
)
from adaverify.outset import MODEL, Choice, Outset
from adaverify.pricing import Job, Prices, find_prices, share_of_measuring
from adaverify.prompting import encode_prompts, take_prompts
from adaverify.rivals import fixed_engines, require_fewer, rival_engines, rival_names
from adaverify.run_report import build_report, render_report
from adaverify.running import (
    WARMUP,
    Live,
    require_trace,
    run_modes,
    sampling_of,
    trace_failure,
    trace_writer,
)
from adaverify.session import Session, load_named, load_session, prepare, table_path
from adaverify.usage import LARGEST_SEED, finite_temperature, path
from adaverify_contracts import AdaverifyError
from adaverify_engine import Engine, Sampling
from adaverify_engine.compare import Comparison
from adaverify_runtime import Mode


@reports_errors
def run(
    prompts: Annotated[
        Path | None,
        typer.Option(
            parser=path, metavar="PATH", help="Text (one prompt a line) or JSONL; HumanEval when omitted."
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="How many prompts to take; 8 of HumanEval, all of a file.")
    ] = None,
    concurrency: Concurrency = None,
    tokens: Tokens = 64,
    draft_tokens: DraftTokens = None,
    temperature: Annotated[
        float, typer.Option(callback=finite_temperature, help="0 is greedy; otherwise 1e-6 .. 1e6.")
    ] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, max=LARGEST_SEED, help="Seed of sampled runs.")] = None,
    trim_invariant: Annotated[
        bool,
        typer.Option(
            "--trim-invariant", help="Sampled tokens, too, are the same in all modes, and compared."
        ),
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Recorded rounds; the modes take turns in each.")] = 3,
    mode: Modes = None,
    fixed: Annotated[
        list[int] | None,
        typer.Option(
            help="Also draft and verify this many tokens, fixed: 1 .. 6, or below the K that is set; may be "
            "repeated.",
        ),
    ] = None,
    model: Model = MODEL,
    drafter: Drafters = None,
    calibration: Calibration = None,
    device: Device = None,
    dtype: Dtype = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put each prompt into the chat template.")] = False,
    offline: Offline = False,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure/--no-measure",
            help="Measure or check step times; without, a stored table is trusted, or nothing is trimmed.",
        ),
    ] = True,
    show: Annotated[int, typer.Option(min=0, help="Completions to print.")] = 1,
    reliability: Annotated[
        bool,
        typer.Option("--reliability", help="Print predicted and observed acceptance by draft position."),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            parser=path, metavar="PATH", help="Write one JSON record for each adaptive step to this file."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Run the prompts in the modes none, fixed and adaptive, in turn, and compare them.

    Exits with 1 when the modes' greedy or trim-invariant tokens differ in float32 for another reason than a
    near-tie, or when a request failed.
    """
    load = load_average()
    modes = tuple(name for name in MODES if name in mode) if mode else MODES
    texts, places = take_prompts(prompts, count)
    sampling = sampling_of(len(texts), tokens, temperature, seed, trim_invariant=trim_invariant)
    if trace is not None:
        _check_trace(trace, "--trace", modes)
    counts = sorted(set(fixed or ()))
    require_fewer(counts, draft_tokens)
    choice = Choice(model, drafter, device, dtype, draft_tokens, seed, offline, calibration)
    outset = prepare(choice, mode=modes[-1])
    trace = trace or _preset_trace(outset, modes)
    at_once = _concurrency(outset, concurrency, len(texts))
    # A prompt has a token at least; how many more, and whether rivals run, only the model tells.
    outset.require_sizes(at_once, 1 + tokens, len(modes) + len(counts))
    _check_table(outset, at_once, modes)
    with progress() as display:
        course = Course(display)
        session = load_session(outset, course.stage(f"loading {model}", LOADED))
        ids = encode_prompts(session, texts, places, tokens, chat)
        session = session.sized(
            at_once,
            max(map(len, ids)) + tokens,
            len(modes) + len(counts) + sum(map(len, rival_names(session, modes).values())),
        )
        sizes = {
            "concurrency": session.options.max_requests,
            "tokens": tokens,
            "rounds": rounds,
            "temperature": temperature,
            "trim_invariant": trim_invariant,
            "seed": session.options.seed,
        }
        steps = job_steps(len(modes), rounds + WARMUP, len(ids), session.options.max_requests, tokens)
        job = Job("adaptive" in modes, measure, steps)
        result, engines, prices, crowded = _compare(
            session, modes, counts, ids, sampling, sizes, trace, job, course, load
        )
    _forget_stray_table(session, engines)
    report = build_report(session, result, engines, texts, sizes, prices, [crowded] if crowded else [])
    if json:
        emit_json(report)
    else:
        render_report(report, show, trace, reliability=reliability)
    if trace is not None and (failure := trace_failure(engines, trace)):
        raise failure
    for line in failures_in_words(result.failed, len(texts), model, session.plugins):
        note(line)
    if result.failed or (session.options.dtype == "float32" and result.identical is False):
        raise typer.Exit(CHECK_FAILED)


def _compare(
    session: Session,
    modes: tuple[Mode, ...],
    counts: list[int],
    ids: list[list[int]],
    sampling: list[Sampling],
    sizes: dict[str, Any],
    trace: Path | None,
    job: Job,
    course: Course,
    load: float,
) -> tuple[Comparison, dict[str, Engine], Prices, str]:
    """Run the modes; return the comparison, the engines that ran, the origin of the prices and a warning."""
    with trace_writer(trace, session, sizes | {"prompts": len(ids)}) as writer:
        until = LOADED + (1.0 - LOADED) * share_of_measuring(session, job)
        prices = find_prices(session, job, course, until=until)
        engines: dict[str, Engine] = {name: session.engine(name, prices.table) for name in modes}
        engines |= fixed_engines(session, counts)
        engines |= rival_engines(
            session,
            modes,
            prices.table,
            lambda rival: find_prices(rival, job, course, until=until).table,
        )
        for line in engines[modes[0]].verifier.report.warnings:
            note(line)
        crowded = crowding(session.options.device, load, prices)
        if crowded:
            note(crowded)
            for engine in engines.values():
                engine.verifier.manager.note(0, CROWDED)
        live = Live(engines)
        show, finished = course.stage("running", note=live), 0

        def advance(done: int, total: int) -> None:
            nonlocal finished
            finished = done
            show(done, total)

        try:
            result = run_modes(
                engines, ids, sampling, session, rounds=sizes["rounds"], writer=writer, advance=advance
            )
        except KeyboardInterrupt:
            course.stop()
            _say_partial(live, finished, (sizes["rounds"] + WARMUP) * len(engines), len(engines))
            raise
    return result, engines, prices, crowded


def _check_trace(path: Path, option: str, modes: tuple[Mode, ...]) -> None:
    if "adaptive" not in modes:
        raise AdaverifyError(
            "a trace holds the steps of the mode adaptive, which does not run",
            arrived=modes,
            allowed="modes that include adaptive",
            remedy="add --mode adaptive, or leave out --trace",
        )
    require_writable(path, option)
    require_trace(path, option)


def _preset_trace(outset: Outset, modes: tuple[Mode, ...]) -> Path | None:
    """Return the trace that the settings ask for, where there is anything to trace."""
    path = outset.settings.paths.trace if "adaptive" in modes else None
    if path is not None:
        _check_trace(path, "ADAVERIFY_PATHS_TRACE", modes)
    return path


def _check_table(outset: Outset, concurrency: int, modes: tuple[Mode, ...]) -> None:
    """Refuse a cost table that the user named and that cannot serve, where it would be read."""
    path = outset.settings.paths.cost_table
    if path is not None and "adaptive" in modes and outset.options.draft_tokens > 0:
        load_named(path, outset.fingerprint(concurrency))


def _concurrency(outset: Outset, asked: int | None, prompts: int) -> int:
    wanted = asked or outset.concurrency
    if asked is not None and wanted > prompts:
        runs = "runs" if prompts == 1 else "run"
        note(
            f"--concurrency {asked} and {count_of(prompts, 'prompt')}: no more than {prompts} {runs} at once"
        )
    return min(wanted, prompts)


def _forget_stray_table(session: Session, engines: dict[str, Engine]) -> None:
    """Remove our own stored table when served steps disagreed with it, so that the next run measures anew."""
    counted = engines["adaptive"].verifier.counters if "adaptive" in engines else {}
    if "table-left-bounds" in counted and session.settings.paths.cost_table is None:
        table_path(session).unlink(missing_ok=True)
        note("step times left the cost table's bounds, so it is removed: the next run measures a new one")


def _say_partial(live: Live, done: int, total: int, modes: int) -> None:
    kind = "in the warm-up round" if done < modes else "after the warm-up round"
    note(f"interrupted {kind}: {done} of {total} runs of a mode were finished; so far, not a result:")
    err().print(table("Until the interruption", ("mode", "tokens/s", "tokens", "steps"), live.rows()))
