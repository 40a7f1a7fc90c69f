"""``adaverify run``: prompts in, text out, the modes compared on the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from adaverify.console import CHECK_FAILED, emit_json, err, out, progress, reports_errors, table
from adaverify.prompts import file_prompts, human_eval_prompts
from adaverify.session import (
    DRAFTER,
    MODEL,
    Choice,
    Session,
    measure_table,
    open_session,
    stored_table,
)
from adaverify_contracts import AdaverifyError
from adaverify_engine import Engine, Sampling
from adaverify_engine.compare import Comparison, compare
from adaverify_replay import TraceHeader, TraceWriter
from adaverify_runtime import Mode
from adaverify_verification import CostTable

MODES: tuple[Mode, ...] = ("none", "fixed", "adaptive")


@reports_errors
def run(
    prompts: Annotated[
        Path | None, typer.Option(help="Text (one prompt a line) or JSONL; HumanEval when omitted.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many prompts to take.")] = 16,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests that run at once.")] = 4,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens for each prompt, at most.")] = 64,
    draft_tokens: Annotated[
        int | None, typer.Option(min=0, help="K, draft tokens for each request; 0 turns speculation off.")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of sampled runs.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Recorded rounds; the modes take turns in each.")] = 3,
    mode: Annotated[list[str] | None, typer.Option(help="Compare only these modes; may be repeated.")] = None,
    model: Annotated[str, typer.Option(help="Target model.")] = MODEL,
    drafter: Annotated[str, typer.Option(help="Drafter.")] = DRAFTER,
    device: Annotated[str, typer.Option(help="Torch device.")] = "cpu",
    dtype: Annotated[
        str | None, typer.Option(help="float32 (tokens are identical in all modes) or bfloat16 (fast).")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put each prompt into the chat template.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Never download anything.")] = False,
    show: Annotated[int, typer.Option(min=0, help="Completions to print.")] = 1,
    trace: Annotated[
        Path | None, typer.Option(help="Write one JSON record for each adaptive step to this file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")] = False,
) -> None:
    """Run the prompts in the modes none, fixed and adaptive, in turn, and compare them.

    Exits with 1 when the modes' greedy tokens differ in float32 for another reason than a near-tie.
    """
    modes = _modes(mode)
    texts = human_eval_prompts(count) if prompts is None else file_prompts(prompts, count)
    choice = Choice(model, drafter, device, dtype, draft_tokens, seed, offline)
    with progress() as display:
        loading = display.add_task(f"loading {model}", total=None, note="")
        session = open_session(
            choice, lambda done, total: display.update(loading, completed=done, total=total, note="fetching")
        )
        display.remove_task(loading)
        ids = [_encode(session, text, chat) for text in texts]
        session = session.sized(concurrency, max(map(len, ids)) + tokens).probed()
        cost_table, origin = _table(session, modes, display)
        engines = {name: session.engine(name, cost_table) for name in modes}
        sampling = Sampling(temperature=temperature, max_tokens=tokens, seed=seed)
        with _tracing(trace, engines.get("adaptive"), session) as drain:
            task = display.add_task("running", total=None, note="")

            def advance(done: int, total: int, name: str) -> None:
                display.update(task, completed=done, total=total, note=name)
                drain()

            result = compare(engines, ids, sampling, rounds=rounds, progress=advance)
    sizes = {"concurrency": concurrency, "tokens": tokens, "rounds": rounds, "temperature": temperature}
    report = _report(session, result, engines, origin, texts, sizes)
    if json:
        emit_json(report)
    else:
        _render(report, show, trace)
    if session.options.dtype == "float32" and not result.identical:
        raise typer.Exit(CHECK_FAILED)


def _modes(named: list[str] | None) -> tuple[Mode, ...]:
    unknown = [name for name in named or () if name not in MODES]
    if unknown:
        raise AdaverifyError(
            "a mode to compare is unknown",
            arrived=", ".join(unknown),
            allowed=", ".join(MODES),
            remedy="repeat --mode for each mode to compare, or omit it for all",
        )
    return tuple(name for name in MODES if name in named) if named else MODES


def _encode(session: Session, text: str, chat: bool) -> list[int]:
    tokenizer = session.model.tokenizer
    return tokenizer.chat([{"role": "user", "content": text}]) if chat else tokenizer.encode(text)


def _table(session: Session, modes: tuple[Mode, ...], display: Any) -> tuple[CostTable | None, str]:
    if "adaptive" not in modes or session.options.draft_tokens == 0:
        return None, "no cost table: nothing to plan"
    cost_table, origin = stored_table(session)
    if cost_table is not None:
        return cost_table, origin
    err().print(f"{origin}: measuring step times", highlight=False, markup=False)
    task = display.add_task("measuring step times", total=None, note="")
    cost_table = measure_table(
        session, lambda done, total: display.update(task, completed=done, total=total), repeats=3
    )
    display.remove_task(task)
    return cost_table, "cost table measured now"


@contextmanager
def _tracing(path: Path | None, engine: Engine | None, session: Session) -> Iterator[Callable[[], object]]:
    """Write the adaptive engine's step records to ``path``; yield what hands queued records to observers."""
    if engine is None:
        yield lambda: None
        return
    verifier = engine.verifier
    if path is None:
        yield verifier.drain
        return
    header = TraceHeader(fingerprint=dict(session.fingerprint.pairs), settings=session.settings.as_dict())
    with TraceWriter(path, header) as writer:
        verifier.add_observer("trace", writer.write)
        yield verifier.drain
        verifier.drain()


def _report(
    session: Session,
    result: Comparison,
    engines: Mapping[Mode, Engine],
    origin: str,
    texts: list[str],
    sizes: dict[str, Any],
) -> dict[str, Any]:
    """Return the whole outcome, JSON-ready; the table shows a part of it."""
    verifiers = {name: engine.verifier for name, engine in engines.items()}
    speeds = {name: one.tokens_per_second for name, one in result.results.items()}
    first = next(iter(verifiers.values()))
    return {
        "setup": {
            "model": session.model.model.geometry.name,
            "dtype": session.options.dtype,
            "device": first.capability.device_name,
            "drafter": session.drafter.name,
            "draft_tokens": session.options.draft_tokens,
            "strategies": [item.name for item in first.report.strategies if item.chosen],
            "cost": origin,
            "prompts": len(texts),
            **sizes,
        },
        "modes": {
            name: {
                **asdict(one),
                "ratio_to_best_other": speeds[name] / max(v for k, v in speeds.items() if k != name)
                if len(speeds) > 1
                else None,
                "counters": dict(verifiers[name].counters),
            }
            for name, one in result.results.items()
        },
        "tokens": {
            "compared": result.compared,
            "identical": result.identical,
            "near_ties": result.near_ties,
            "threshold": result.threshold,
            "divergences": [asdict(one) for one in result.divergences],
        },
        "completions": [
            {"prompt": text, "text": one.text, "tokens": list(one.tokens), "reason": one.reason.value}
            for text, one in zip(texts, result.completions, strict=True)
        ],
        "disabled_observers": [
            asdict(one) for verifier in verifiers.values() for one in verifier.disabled_observers
        ],
    }


# Short enough for 80 columns; the reference of the command line spells them out.
_COLUMNS = (
    "mode",
    "tokens/s",
    "spread",
    "steps",
    "length",
    "verified",
    "wasted",
    "budget",
    "ratio",
)

_LEGEND = (
    "length: accepted length, bonus token included. verified, wasted: draft tokens. "
    "budget: draft tokens verified a step, mean. ratio: to the best other mode."
)


def _render(report: dict[str, Any], show: int, trace: Path | None) -> None:
    setup = report["setup"]
    for item in report["completions"][:show]:
        out().rule("prompt", align="left", style="dim")
        out().print(item["prompt"], style="dim", markup=False, highlight=False)
        out().print(item["text"], markup=False, highlight=False)
    out().rule(style="dim")
    title = (
        f"{setup['model']}, {setup['dtype']}, {setup['prompts']} prompts, "
        f"{setup['concurrency']} at once, {setup['tokens']} new tokens, K = {setup['draft_tokens']}, "
        f"drafter {setup['drafter']}"
    )
    out().print(table(title, _COLUMNS, [_row(name, one) for name, one in report["modes"].items()]))
    tokens = report["tokens"]
    out().print(_LEGEND, style="dim", highlight=False)
    out().print(_verdict(tokens, setup["dtype"]), highlight=False)
    out().print(f"Strategies: {', '.join(setup['strategies'])}. Cost: {setup['cost']}.", highlight=False)
    for name, one in report["modes"].items():
        for counter, number in one["counters"].items():
            out().print(f"counted in {name}: {counter} x {number}", markup=False, highlight=False)
    for observer in report["disabled_observers"]:
        out().print(f"observer disabled: {observer}", markup=False, highlight=False)
    if trace is not None:
        out().print(f"Trace of the adaptive steps: {trace}", markup=False, highlight=False)


def _row(name: str, one: dict[str, Any]) -> tuple[object, ...]:
    stats, ratio = one["stats"], one["ratio_to_best_other"]
    return (
        name,
        one["tokens_per_second"],
        f"{one['lowest']:.1f}-{one['highest']:.1f}",
        stats["steps"],
        stats["accepted_length"],
        stats["verified"],
        stats["wasted"],
        stats["mean_budget"],
        "-" if ratio is None else f"{ratio:.3f}",
    )


def _verdict(tokens: dict[str, Any], dtype: str) -> str:
    compared, near = tokens["compared"], tokens["near_ties"]
    if not compared:
        return "Sampled requests: tokens are not compared."
    different = len(tokens["divergences"])
    if not different:
        return f"Tokens: identical in all modes, {compared} prompts compared."
    if tokens["identical"]:
        return (
            f"Tokens: identical in all modes but for {near} near-ties "
            f"(two best logits within {tokens['threshold']:g}), {compared} prompts compared."
        )
    if dtype != "float32":
        return (
            f"Tokens: {different} of {compared} prompts differ between modes. In {dtype} logits move with "
            "the batch shape, whatever is verified; run with --dtype float32 to see identity."
        )
    return f"Tokens: {different - near} prompts differ for another reason than a near-tie. This is a fault."
