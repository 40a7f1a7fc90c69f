"""What capturing the engine's decode step costs: the ladder for ragged batches beside that for full ones."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from adaverify.bench.timing import sample
from adaverify.bench.whole import PROMPT, K, periodic_prompts, session_of
from adaverify.session import Session
from adaverify_contracts import (
    BenchmarkCell,
    BenchmarkColumn,
    BenchmarkOptions,
    BenchmarkResult,
    EngineError,
    WrongValueError,
)
from adaverify_engine import Engine, Sampling, compare
from adaverify_graphs import CaptureReport
from adaverify_runtime import Mode

REQUESTS = {"cpu": (4,), "cuda": (64,)}
OUTPUT = 40
# Smallest gap of the two best logits that rounding does not explain: bfloat16 logits move by 1/128 of their
# size, and a captured step runs at its tier's shape while an eager one does not.
GAPS = {"float32": 1e-3, "bfloat16": 0.5}
ARMS: tuple[Mode, ...] = ("adaptive", "fixed")


def run(options: BenchmarkOptions) -> BenchmarkResult:
    """Check what captured steps of both ladders emit, then capture them in turn, each in a fresh pool."""
    session, notes = session_of(options)
    kind = "cpu" if options.device.startswith("cpu") else "cuda"
    sizes = options.requests or REQUESTS[kind]
    rows: list[tuple[BenchmarkCell, ...]] = []
    ties: dict[str, dict[str, int]] = {}
    for number, requests in enumerate(sizes):
        sized = session.sized(requests, PROMPT + OUTPUT, engines=2)
        arms = {mode: arm(sized, mode) for mode in ARMS}
        total = options.repeat + 1
        options.progress(number * total, len(sizes) * total, f"checking captured steps of {requests}")
        ties[str(requests)] = {mode: check(arms[mode], mode, requests) for mode in ARMS}
        reports: dict[str, list[CaptureReport]] = {mode: [] for mode in ARMS}
        for turn in range(options.repeat):
            options.progress(number * total + 1 + turn, len(sizes) * total, f"capturing for {requests}")
            for mode in ARMS if turn % 2 else reversed(ARMS):
                reports[mode].append(_once(arms[mode], mode))
        rows += _rows(requests, reports)
    geometry = session.model.model.geometry
    return BenchmarkResult(
        columns=(
            BenchmarkColumn("requests"),
            BenchmarkColumn("variant"),
            BenchmarkColumn("graphs"),
            BenchmarkColumn("seconds", "s"),
            BenchmarkColumn("seconds_over_fixed", "adaptive / fixed"),
            BenchmarkColumn("pool_bytes", "bytes"),
            BenchmarkColumn("bytes_over_fixed", "adaptive / fixed"),
            BenchmarkColumn("seconds_low", "s", shown=False),
            BenchmarkColumn("seconds_high", "s", shown=False),
        ),
        rows=tuple(rows),
        checks=(
            "every size of both ladders is captured",
            (
                "greedy tokens of runs with captured steps equal those of an engine that runs each step "
                f"eagerly, but for near-ties (gap below {GAPS[session.options.dtype]:g}; facts count them)"
            ),
        ),
        data=f"the engine's whole decode step of {geometry.name} in {session.options.dtype}, drafting to "
        f"history, K {K}, largest graph requests x {K + 1} tokens",
        cache="warm: the check compiled kernels and loaded libraries; each round captures a new engine into "
        "a fresh pool, and the arm that goes first changes every round",
        notes=notes,
        facts={"model": geometry.name, "dtype": session.options.dtype, "near_ties": ties},
    )


def arm(session: Session, mode: Mode) -> Session:
    """Return the session of one arm: ``fixed`` captures full batches alone, as an engine without ragged does.

    Memory limits of the user's settings stay in force; the level is what the two arms differ in.
    """
    level = "uniform" if mode == "fixed" else "varlen"
    graphs = session.settings.graphs.model_copy(update={"mode": level})
    # All prompts in one step, so that requests decode together.
    sizes = replace(session.options, prefill_chunk=PROMPT * session.options.max_requests)
    return replace(session, settings=replace(session.settings, graphs=graphs), options=sizes)


def captured(engine: Engine, mode: Mode) -> CaptureReport:
    """Capture an engine's decode steps and return the report of a complete ladder.

    Raises:
        EngineError: nothing captures here.
        WrongValueError: a size was not captured.
    """
    report = engine.capture()
    if report is None or not (report.captured or report.failed):
        raise EngineError(
            f"the steps of mode {mode} cannot be captured here",
            arrived="nothing to capture",
            allowed="a graph backend and a strategy that capture, and a drafter on the device",
            remedy="run `adaverify doctor` to see why",
        )
    if report.failed:
        failure = report.failed[0]
        raise WrongValueError(
            f"{len(report.failed)} sizes of the {mode} ladder were not captured",
            arrived=f"{failure.key.tokens} tokens: {failure.cause}",
            allowed="all of them",
            remedy="cure the cause; times of an incomplete ladder say nothing",
        )
    return report


def _once(session: Session, mode: Mode) -> CaptureReport:
    """Capture a new engine and let go of it."""
    with _fresh(session, mode) as engine:
        return captured(engine, mode)


def check(session: Session, mode: Mode, requests: int) -> int:
    """Require an eager engine's tokens from captured steps; return how many near-ties differ.

    Raises:
        WrongValueError: tokens differ where rounding does not explain it, or no step was replayed.
    """
    sampling = Sampling(max_tokens=OUTPUT, ignore_stop_tokens=True)
    gap = GAPS[session.options.dtype]
    with _fresh(session, mode) as eager, _fresh(session, mode) as engine:
        captured(engine, mode)
        both = {"eager": eager, "captured": engine}
        found = compare(both, periodic_prompts(requests, 0), sampling, rounds=1, warmup=0, threshold=gap)
        if found.failures:
            first = found.failures[0]
            raise WrongValueError(
                f"captured steps of the {mode} ladder emit other tokens than eager ones",
                arrived=f"prompt {first.prompt}, output token {first.position}, gap {first.gap:.2e}",
                allowed=f"the same tokens, or a gap below {gap:g}",
                remedy="do not use this graph backend here; no time was taken",
            )
        if not engine.verifier.counters.get("graph replayed"):
            raise WrongValueError(
                f"no step of the {mode} ladder was replayed, so its values were not checked",
                arrived=dict(engine.verifier.counters),
                allowed="at least one replay",
                remedy="report it with this command; no time was taken",
            )
        return found.near_ties


@contextmanager
def _fresh(session: Session, mode: Mode) -> Iterator[Engine]:
    """Lend an engine without graphs, and give back all that it held."""
    gc.collect()
    if session.options.device.startswith("cuda"):
        torch.cuda.empty_cache()
    engine = session.uncaptured(mode)
    try:
        yield engine
    finally:
        engine.verifier.close()


def _rows(requests: int, reports: dict[str, list[CaptureReport]]) -> list[tuple[BenchmarkCell, ...]]:
    seconds = {name: sample([one.seconds for one in found]) for name, found in reports.items()}
    held = {name: sorted(one.pool_bytes for one in found)[len(found) // 2] for name, found in reports.items()}
    rows: list[tuple[BenchmarkCell, ...]] = []
    for name, found in reports.items():
        ours = name != "fixed"
        taken = seconds[name]
        longer = taken.median / seconds["fixed"].median if ours and seconds["fixed"].median else None
        larger = held[name] / held["fixed"] if ours and held["fixed"] else None
        rows.append(
            (
                requests,
                name,
                len(found[-1].captured),
                taken.median,
                None if longer is None else round(longer, 4),
                held[name],
                None if larger is None else round(larger, 4),
                taken.low,
                taken.high,
            )
        )
    return rows
