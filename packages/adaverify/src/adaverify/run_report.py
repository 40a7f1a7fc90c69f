"""The outcome of ``adaverify run``: one JSON-ready value, and the part of it that a terminal shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adaverify.console import count_of, out, rule, say, table
from adaverify.loaded import failures_by_mode
from adaverify.options import MODES
from adaverify.pricing import Prices
from adaverify.reliability import reliability_of, render_reliability
from adaverify.rivals import rival_name, rival_names
from adaverify.session import Session
from adaverify_engine import Engine
from adaverify_engine.compare import Comparison

PHASES = ("draft", "plan", "forward", "accept", "observe")


def build_report(
    session: Session,
    result: Comparison,
    engines: Mapping[str, Engine],
    texts: Sequence[str],
    setup: Mapping[str, Any],
    prices: Prices,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the whole outcome, JSON-ready.

    Args:
        session: what ran.
        result: of the comparison.
        engines: by mode, then those of the rivals by their names.
        texts: the prompts.
        setup: sizes that the user should see.
        prices: the cost table and where it came from.
        warnings: what was seen of the machine, beside the warnings of the start.

    Raises:
        PluginError: a plugin's signal raised when it was asked for its reliability.
    """
    verifiers = {mode: engine.verifier for mode, engine in engines.items()}
    first = next(iter(verifiers.values())).report
    rivals = rival_names(session, [mode for mode in MODES if mode in engines])
    beside = {name for names in rivals.values() for name in names.values()}
    modes = {mode: mode for mode in engines if mode not in beside}
    return {
        "setup": {
            "model": session.model.model.geometry.name,
            "dtype": session.options.dtype,
            "device": session.capability.device_name,
            "drafter": session.drafter.name,
            "drafter_fallback": session.fallback or None,
            "draft_tokens": session.options.draft_tokens,
            "strategies": [item.name for item in first.strategies if item.chosen],
            "prompts": len(texts),
            **setup,
            "cost": prices.words,
            "signal": session.settings.planner.signal,
            "calibration": _path(session.settings.paths.calibration),
        },
        "cost_table": prices.as_dict(),
        "modes": _modes(modes, result, engines, session),
        "rivals": {
            drafter: _modes(names, result, engines, session, beside=("none",))
            for drafter, names in rivals.items()
        },
        "tokens": {
            "compared": result.compared,
            "identical": result.identical,
            "near_ties": result.near_ties,
            "threshold": result.threshold,
            "divergences": [asdict(one) for one in result.divergences],
            "failed": [asdict(one) for one in result.failed],
        },
        "completions": _completions(result, texts),
        "notes": list(dict.fromkeys(line for one in verifiers.values() for line in one.report.notes)),
        "warnings": [*first.warnings, *warnings],
        "disabled_observers": [
            {"mode": mode, **asdict(one)}
            for mode, verifier in verifiers.items()
            for one in verifier.disabled_observers
        ],
    }


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _completions(result: Comparison, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return every mode's completion of each prompt, of the last round, and whether all rounds agreed."""
    differing = {one.prompt for one in result.divergences}
    failed = {one.prompt for one in result.failed}
    return [
        {
            "prompt": text,
            "identical": None if result.identical is None or index in failed else index not in differing,
            "modes": {
                mode: {
                    "text": found[index].text,
                    "tokens": list(found[index].tokens),
                    "reason": found[index].reason.value,
                    "error": found[index].error or None,
                }
                for mode, found in result.by_mode.items()
            },
        }
        for index, text in enumerate(texts)
    ]


def _modes(
    names: Mapping[Any, str],
    result: Comparison,
    engines: Mapping[str, Engine],
    session: Session,
    beside: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the figures of one drafter by mode; ``names`` are those of the comparison."""
    group = [name for name in (*beside, *names.values()) if name in engines]
    return {
        mode: _mode(name, group, result, engines[name])
        | {"reliability": reliability_of(engines[name], session.plugins)}
        for mode, name in names.items()
    }


def _mode(mode: str, group: Sequence[str], result: Comparison, engine: Engine) -> dict[str, Any]:
    speeds = {name: result.results[name].tokens_per_second for name in group}
    others = [speed for name, speed in speeds.items() if name != mode]
    one = result.results[mode]
    seconds, whole = one.stats["seconds"], one.stats["total_seconds"]
    return {
        **asdict(one),
        "ratio_to_best_other": speeds[mode] / max(others) if others else None,
        "time_shares": {phase: seconds[phase] / whole if whole else 0.0 for phase in PHASES},
        "counters": dict(engine.verifier.counters),
    }


# Short enough for 80 columns; the legend below the table spells them out.
_COLUMNS = (
    "mode",
    "tokens/s",
    "min-max",
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


def render_report(
    report: dict[str, Any], show: int, trace: Path | None, *, reliability: bool = False
) -> None:
    """Print completions, the tables and every statement that belongs to them, in 80 columns."""
    setup, modes = report["setup"], report["modes"]
    for item in report["completions"][:show]:
        rule("prompt")
        say(item["prompt"], "dim")
        for names, text in _distinct(item["modes"]):
            rule(f"completion, {names}")
            say(text)
    rule()
    say(
        f"{setup['model']}, {setup['dtype']}, {count_of(setup['prompts'], 'prompt')}, "
        f"{setup['concurrency']} at once, {count_of(setup['tokens'], 'new token')}, "
        f"K = {setup['draft_tokens']}, drafter {setup['drafter']}, {count_of(setup['rounds'], 'round')}"
    )
    out().print()
    out().print(table("Modes", _COLUMNS, [_row(name, one) for name, one in modes.items()]))
    for drafter, found in report["rivals"].items():
        out().print()
        out().print(table(f"Drafter {drafter}", _COLUMNS, [_row(name, one) for name, one in found.items()]))
    say(_LEGEND, "dim")
    for line in _against(setup["drafter"], modes, report["rivals"]):
        say(line)
    out().print()
    out().print(table("Share of the step time", ("mode", *PHASES, "not the model"), _shares(modes)))
    out().print()
    if reliability:
        render_reliability(modes)
    arms = len(modes) + sum(map(len, report["rivals"].values()))
    say(verdict(report["tokens"], setup["dtype"], arms, setup["prompts"]))
    if lost := failures_by_mode(report["tokens"]["failed"], setup["prompts"]):
        say(lost)
    say(f"Strategies: {', '.join(setup['strategies'])}. Cost: {setup['cost']}.")
    if setup["calibration"]:
        say(f"Calibration of signal {setup['signal']}: {setup['calibration']}")
    if setup["drafter_fallback"]:
        say(f"Fallback: {setup['drafter_fallback']}.")
    rivals = {
        rival_name(drafter, mode): one for drafter, of in report["rivals"].items() for mode, one in of.items()
    }
    for name, one in (modes | rivals).items():
        for counter, number in one["counters"].items():
            say(f"Counted in {name}: {counter} x {number}.")
    for one in report["disabled_observers"]:
        say(
            f"Observer {one['plugin']} raised in {one['mode']} at step {one['step']} and is disabled: "
            f"{one['error']}."
        )
    if trace is not None:
        say(f"Trace of the adaptive steps, warm-up round included: {trace}")


def _distinct(modes: dict[str, Any]) -> list[tuple[str, str]]:
    """Return each distinct text once, with the names of the modes that gave it."""
    names: dict[str, list[str]] = {}
    for mode, one in modes.items():
        names.setdefault(one["text"], []).append(mode)
    return [(", ".join(by), text) for text, by in names.items()]


def _row(name: str, one: dict[str, Any]) -> tuple[object, ...]:
    stats, ratio = one["stats"], one["ratio_to_best_other"]
    return (
        name,
        f"{one['tokens_per_second']:.1f}",
        f"{one['lowest']:.1f}-{one['highest']:.1f}",
        stats["steps"],
        f"{stats['accepted_length']:.2f}",
        stats["verified"],
        stats["wasted"],
        f"{stats['mean_budget']:.1f}",
        None if ratio is None else ratio,
    )


def _against(drafter: str, modes: dict[str, Any], rivals: dict[str, Any]) -> list[str]:
    """Return one sentence a rival: how much faster each mode is with the first drafter."""
    lines = []
    for rival, found in rivals.items():
        ratios = [
            f"{mode} {modes[mode]['tokens_per_second'] / one['tokens_per_second']:.2f} x"
            for mode, one in found.items()
        ]
        lines.append(f"{drafter} against {rival}, tokens per second: {', '.join(ratios)}.")
    return lines


def _shares(modes: dict[str, Any]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for name, one in modes.items():
        shares = one["time_shares"]
        rest = 1.0 - shares["forward"]
        rows.append((name, *(f"{100 * shares[phase]:.1f} %" for phase in PHASES), f"{100 * rest:.1f} %"))
    return rows


def verdict(tokens: dict[str, Any], dtype: str, modes: int, prompts: int) -> str:
    """Return in words whether the modes emitted the same tokens, and what excuses a difference."""
    failed = {one["prompt"] for one in tokens["failed"]}
    compared, near = tokens["compared"], tokens["near_ties"]
    if modes == 1:
        return "Tokens: one mode ran, so there is nothing to compare."
    if len(failed) == prompts:
        return "Tokens: no prompt was completed by every mode, so nothing is compared."
    if not compared:
        return "Tokens: sampled requests are not compared; --trim-invariant would make them equal."
    if not tokens["divergences"]:
        return f"Tokens: identical in all modes, {count_of(compared, 'prompt')} compared, no near-tie."
    if tokens["identical"]:
        return (
            f"Tokens: identical in all modes, {count_of(compared, 'prompt')} compared, but for "
            f"{count_of(near, 'near-tie')} (two best logits within {tokens['threshold']:g})."
        )
    failures = [one for one in tokens["divergences"] if not one["near_tie"]]
    others = len({one["prompt"] for one in failures})
    differ = f"{others} of {count_of(compared, 'prompt')} {'differs' if others == 1 else 'differ'}"
    if dtype != "float32":
        return (
            f"Tokens: {differ} between modes. In {dtype} logits move with the batch shape, "
            "whatever is verified; run with --dtype float32 to see identity."
        )
    first = failures[0]
    return (
        f"Tokens: {differ} for another reason than a near-tie: prompt "
        f"{first['prompt'] + 1} leaves the text of the first mode at token {first['position'] + 1} in "
        f"{first['mode']}. This is a fault."
    )
