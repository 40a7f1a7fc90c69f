"""``adaverify run``: prompts in, text out, the modes compared on the same prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from adaverify.blame import blaming_plugins
from adaverify.console import CHECK_FAILED, emit_json, err, note, progress, reports_errors, table
from adaverify.files import require_writable
from adaverify.options import MODES, Device, Drafter, DraftTokens, Dtype, Json, Model, Modes, Offline
from adaverify.pricing import Prices, find_prices
from adaverify.prompts import human_eval_prompts, numbered_prompts
from adaverify.run_report import build_report, render_report
from adaverify.running import Live, require_trace, run_modes, sampling_of, trace_failure, trace_writer
from adaverify.session import (
    DRAFTER,
    MODEL,
    Choice,
    Session,
    open_session,
    table_path,
)
from adaverify_contracts import AdaverifyError, PromptError
from adaverify_engine import Engine, Sampling
from adaverify_engine.compare import Comparison
from adaverify_runtime import Mode

# With 64 new tokens and three rounds some 100 seconds on two quiet cores, measuring step times included.
_HUMAN_EVAL_COUNT = 8


@reports_errors
def run(
    prompts: Annotated[
        Path | None, typer.Option(help="Text (one prompt a line) or JSONL; HumanEval when omitted.")
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="How many prompts to take; 8 of HumanEval, all of a file.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Requests that run at once; 4.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens for each prompt, at most.")] = 64,
    draft_tokens: DraftTokens = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of sampled runs.")] = None,
    trim_invariant: Annotated[
        bool,
        typer.Option(
            "--trim-invariant", help="Sampled tokens, too, are the same in all modes, and compared."
        ),
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Recorded rounds; the modes take turns in each.")] = 3,
    mode: Modes = None,
    model: Model = MODEL,
    drafter: Drafter = DRAFTER,
    device: Device = None,
    dtype: Dtype = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put each prompt into the chat template.")] = False,
    offline: Offline = False,
    show: Annotated[int, typer.Option(min=0, help="Completions to print.")] = 1,
    reliability: Annotated[
        bool,
        typer.Option("--reliability", help="Print predicted and observed acceptance by draft position."),
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write one JSON record for each adaptive step to this file.")
    ] = None,
    json: Json = False,
) -> None:
    """Run the prompts in the modes none, fixed and adaptive, in turn, and compare them.

    Exits with 1 when the modes' greedy or trim-invariant tokens differ in float32 for another reason than a
    near-tie.
    """
    modes = tuple(name for name in MODES if name in mode) if mode else MODES
    texts, places = _prompts(prompts, count)
    sampling = sampling_of(len(texts), tokens, temperature, seed, trim_invariant=trim_invariant)
    if trace is not None:
        _check_trace(trace, modes)
    choice = Choice(model, drafter, device, dtype, draft_tokens, seed, offline)
    with progress() as display:
        loading = display.add_task(f"loading {model}", total=None, note="")
        session = open_session(
            choice, lambda done, total: display.update(loading, completed=done, total=total, note="fetching")
        )
        display.remove_task(loading)
        trace = trace or _preset_trace(session, modes)
        ids = _encode(session, texts, places, tokens, chat)
        session = session.sized(
            _concurrency(session, concurrency, len(texts)), max(map(len, ids)) + tokens, len(modes)
        )
        sizes = {
            "concurrency": session.options.max_requests,
            "tokens": tokens,
            "rounds": rounds,
            "temperature": temperature,
            "trim_invariant": trim_invariant,
            "seed": session.options.seed,
        }
        result, engines, prices = _compare(session, modes, ids, sampling, sizes, trace, display)
    _forget_stray_table(session, engines)
    report = build_report(session, result, engines, texts, sizes, prices)
    if json:
        emit_json(report)
    else:
        render_report(report, show, trace, reliability=reliability)
    if trace is not None and (failure := trace_failure(engines, trace)):
        raise failure
    if session.options.dtype == "float32" and result.identical is False:
        raise typer.Exit(CHECK_FAILED)


def _compare(
    session: Session,
    modes: tuple[Mode, ...],
    ids: list[list[int]],
    sampling: list[Sampling],
    sizes: dict[str, Any],
    trace: Path | None,
    display: Progress,
) -> tuple[Comparison, dict[Mode, Engine], Prices]:
    """Run the modes; return the comparison, the engines that ran and where the prices came from."""
    with trace_writer(trace, session, sizes | {"prompts": len(ids)}) as writer:
        prices = find_prices(session, planned="adaptive" in modes, display=display)
        engines = {name: session.engine(name, prices.table) for name in modes}
        for line in engines[modes[0]].verifier.report.warnings:
            note(line)
        live = Live(engines)
        task = display.add_task("running", total=None, note=live)

        def advance(done: int, total: int) -> None:
            display.update(task, completed=done, total=total)

        try:
            result = run_modes(
                engines, ids, sampling, session, rounds=sizes["rounds"], writer=writer, advance=advance
            )
        except KeyboardInterrupt:
            display.stop()
            _say_partial(
                live, int(display.tasks[-1].completed), (sizes["rounds"] + 1) * len(modes), len(modes)
            )
            raise
    return result, engines, prices


def _prompts(path: Path | None, count: int | None) -> tuple[list[str], list[str]]:
    """Return the prompts, and where each one stands for messages about it."""
    if path is None:
        texts, where = human_eval_prompts(count or _HUMAN_EVAL_COUNT), "HumanEval"
        places = [f"HumanEval/{index}" for index in range(len(texts))]
    else:
        numbered, where = numbered_prompts(path, count), str(path)
        texts = [text for _, text in numbered]
        places = [f"{path} line {line}" for line, _ in numbered]
    if count is not None and len(texts) < count:
        note(f"{where} holds {len(texts)} prompts; --count asked for {count}, so all of them run")
    return texts, places


def _check_trace(path: Path, modes: tuple[Mode, ...]) -> None:
    if "adaptive" not in modes:
        raise AdaverifyError(
            "a trace holds the steps of the mode adaptive, which does not run",
            arrived=modes,
            allowed="modes that include adaptive",
            remedy="add --mode adaptive, or leave out --trace",
        )
    require_writable(path, "--trace")
    require_trace(path)


def _preset_trace(session: Session, modes: tuple[Mode, ...]) -> Path | None:
    """Return the trace that the settings ask for, where there is anything to trace."""
    return session.settings.paths.trace if "adaptive" in modes else None


def _concurrency(session: Session, asked: int | None, prompts: int) -> int:
    wanted = asked or session.concurrency
    if asked is not None and wanted > prompts:
        note(f"--concurrency {asked} and {prompts} prompts: no more than {prompts} run at once")
    return min(wanted, prompts)


def _encode(
    session: Session, texts: list[str], places: list[str], tokens: int, chat: bool
) -> list[list[int]]:
    """Return the token ids of every prompt; refuses one that no request could hold, by number and place."""
    tokenizer = session.model.tokenizer
    found, cut = [], []
    for number, (text, place) in enumerate(zip(texts, places, strict=True), 1):
        named = f"prompt {number} of {len(texts)} ({place})"
        try:
            with blaming_plugins(session.plugins):
                ids = tokenizer.chat([{"role": "user", "content": text}]) if chat else tokenizer.encode(text)
        except PromptError as error:
            raise PromptError(
                f"{named} is refused: {error.problem}",
                arrived=error.arrived,
                allowed=error.allowed,
                remedy="correct or remove it" + (", or leave out --chat" if chat else ""),
            ) from error
        if not 1 <= len(ids) < session.longest:
            raise PromptError(
                f"{named} does not fit the model",
                arrived=f"{len(ids)} tokens, {text[:40]!r} and so on",
                allowed=f"1 .. {session.longest - 1} tokens, one being kept for the output",
                remedy="shorten or remove it, or choose another model",
            )
        if len(ids) + tokens > session.longest:
            cut.append(f"prompt {number} for {session.longest - len(ids)}")
        found.append(ids)
    if cut:
        note(f"{len(cut)} of {len(texts)} prompts have no room for {tokens} new tokens, {cut[0]}")
    return found


def _forget_stray_table(session: Session, engines: dict[Mode, Engine]) -> None:
    """Remove our own stored table when served steps disagreed with it, so that the next run measures anew."""
    counted = engines["adaptive"].verifier.counters if "adaptive" in engines else {}
    if "table-left-bounds" in counted and session.settings.paths.cost_table is None:
        table_path(session).unlink(missing_ok=True)
        note("step times left the cost table's bounds, so it is removed: the next run measures a new one")


def _say_partial(live: Live, done: int, total: int, modes: int) -> None:
    kind = "in the warm-up round" if done < modes else "after the warm-up round"
    note(f"interrupted {kind}: {done} of {total} runs of a mode were finished; so far, not a result:")
    err().print(table("Until the interruption", ("mode", "tokens/s", "tokens", "steps"), live.rows()))
