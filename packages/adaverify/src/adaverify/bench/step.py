"""A whole decode step of the engine: adaptive beside fixed on the same rows, so that only plans differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

import torch

from adaverify.bench.rows import sample_rows, time_columns
from adaverify.bench.timing import sample
from adaverify.session import MODEL, Choice, Session, open_session
from adaverify_contracts import (
    BenchmarkCell,
    BenchmarkColumn,
    BenchmarkOptions,
    BenchmarkResult,
    EngineError,
    ModelFileError,
    UnknownNameError,
    WrongValueError,
)
from adaverify_engine import Engine, Sampling, compare
from adaverify_runtime import Mode
from adaverify_verification import CostTable

K = 7
REQUESTS = {"cpu": (1, 16), "cuda": (1, 16, 64, 256)}
# At concurrency 1 a difference of half a per cent is to be seen.
STEPS_ALONE, STEPS = 1000, 200
PROMPT, OUTPUT, PERIOD = 24, 96, 8
# Priced, and dearer by less than the margin that trimming has to win: the planner does all its work and
# verifies everything. A flat table (below 1 %) would leave the steps unpriced.
SLOPE = 0.015
MODES: tuple[Mode, ...] = ("adaptive", "fixed")


def run(options: BenchmarkOptions) -> BenchmarkResult:
    """Check that both modes emit the same tokens from the same rows, then time their steps in turn."""
    session, notes = _session(options)
    kind = "cpu" if options.device.startswith("cpu") else "cuda"
    sizes = options.requests or REQUESTS[kind]
    rows: list[tuple[BenchmarkCell, ...]] = []
    counts: dict[str, int] = {}
    for done, requests in enumerate(sizes):
        sized = session.sized(requests, PROMPT + OUTPUT, engines=len(MODES))
        engines = _engines(sized)
        try:
            options.progress(2 * done, 2 * len(sizes), f"checking {requests} requests")
            _check(engines, requests)
            options.progress(2 * done + 1, 2 * len(sizes), f"stepping {requests} requests")
            wanted = options.steps or (STEPS_ALONE if requests == 1 else STEPS)
            times, verified = _measure(options, engines, requests, wanted)
        finally:
            for engine in engines.values():
                engine.verifier.close()
        counts[str(requests)] = len(times["fixed"])
        samples = {name: {"step": sample(values)} for name, values in times.items()}
        rows += sample_rows((requests, len(times["fixed"]), round(verified, 2)), samples, "step")
    geometry = session.model.model.geometry
    return BenchmarkResult(
        columns=(
            BenchmarkColumn("requests"),
            BenchmarkColumn("steps"),
            BenchmarkColumn("drafts", "verified a step"),
            *time_columns("step"),
        ),
        rows=tuple(rows),
        checks=(
            (
                "both modes emit identical greedy tokens and verify the same number of drafts in the same "
                "number of steps, before and during the measurement"
            ),
        ),
        data=f"{geometry.name}, {session.options.dtype}, K {K}, n-gram drafts, periodic prompts of {PROMPT} "
        f"tokens, up to {OUTPUT} output tokens",
        cache="warm: both engines ran the same prompts before; blocks of one set of prompts alternate, and "
        "the mode that goes first changes every block",
        notes=(
            (
                f"a step is whole: draft, plan, forward, accept, observe; prices rise by {100 * SLOPE:g} % "
                "from one token to all, too little for trimming, so adaptive plans and verifies everything"
            ),
            *notes,
        ),
        facts={
            "model": geometry.name,
            "dtype": session.options.dtype,
            "threads": torch.get_num_threads(),
            "steps": counts,
        },
    )


def _session(options: BenchmarkOptions) -> tuple[Session, tuple[str, ...]]:
    """Return a session of the asked model; the tiny one, with a note, where the default is not to be had."""
    choice = Choice(
        model=options.model or MODEL,
        device=options.device,
        dtype=options.dtype,
        draft_tokens=K,
        offline=options.offline,
    )
    try:
        return open_session(choice), ()
    except (ModelFileError, UnknownNameError) as error:
        if options.model is not None:
            raise
        try:
            # Not imported above: the testing kit brings pytest, which nobody needs for the command line.
            from adaverify_testing import tiny_model
        except ImportError:
            raise error from None
        note = f"{choice.model} is not to be had ({error.problem}); the tiny test model stood in for it"
        return open_session(choice, load=tiny_model), (note,)


def _engines(session: Session) -> dict[str, Engine]:
    """Return one engine a mode, equal in everything else, that verify all drafts."""
    planner = session.settings.planner.model_copy(
        update={"online": False, "explore_share": 0.0, "warmup_steps": 0, "margin": 0.02}
    )
    limits = session.options.limits
    # All prompts in one step: else early requests end before the last one decodes.
    sizes = replace(session.options, prefill_chunk=PROMPT * limits.max_requests)
    session = replace(session, settings=replace(session.settings, planner=planner), options=sizes)
    top = limits.max_tokens
    points = [
        (tokens, requests, context, 0.02 * (1.0 + SLOPE * (tokens - 1) / max(1, top - 1)))
        for requests in sorted({1, limits.max_requests})
        for context in (1, limits.max_model_len)
        for tokens in sorted({1, requests, top})
    ]
    table = CostTable.from_points(session.fingerprint, points)
    return {mode: session.engine(mode, table if mode == "adaptive" else None) for mode in MODES}


def _prompts(requests: int, block: int) -> list[list[int]]:
    """Return periodic prompts, which prompt lookup drafts well; each block has others."""
    return [
        [1 + (11 * request + 7 * block + 3 * (place % PERIOD)) % 61 for place in range(PROMPT)]
        for request in range(requests)
    ]


def _sampling() -> Sampling:
    return Sampling(max_tokens=OUTPUT, ignore_stop_tokens=True)


def _check(engines: dict[str, Engine], requests: int) -> None:
    """Require identical tokens and equal counts over whole runs.

    Raises:
        WrongValueError: says where the modes differ.
    """
    ordered = {mode: engines[mode] for mode in ("fixed", "adaptive")}
    result = compare(ordered, _prompts(requests, 0), _sampling(), rounds=1, warmup=1)
    if result.divergences:
        first = result.divergences[0]
        raise WrongValueError(
            f"adaptive and fixed verification emit different tokens at {requests} requests",
            arrived=f"prompt {first.prompt}, output token {first.position}, gap {first.gap:.2e}",
            allowed="identical tokens: both verify the same rows",
            remedy="run `adaverify run` in float32 to see the difference; no time was taken",
        )
    counts = {
        mode: {name: int(one.stats[name]) for name in ("steps", "drafted", "verified", "accepted")}
        for mode, one in result.results.items()
    }
    if counts["adaptive"] != counts["fixed"]:
        raise WrongValueError(
            f"adaptive and fixed verification ran different rows at {requests} requests",
            arrived=counts["adaptive"],
            allowed=str(counts["fixed"]),
            remedy="report it with this command; no time was taken",
        )


def _measure(
    options: BenchmarkOptions, engines: dict[str, Engine], requests: int, wanted: int
) -> tuple[dict[str, list[float]], float]:
    """Return step times in us by mode, interleaved in blocks, and the mean number of verified drafts."""
    times: dict[str, list[float]] = {mode: [] for mode in engines}
    for engine in engines.values():
        engine.reset_stats()
    block = 0
    while len(times["fixed"]) < wanted:
        block += 1
        prompts = _prompts(requests, block)
        emitted = {}
        for mode in MODES if block % 2 else reversed(MODES):
            taken, emitted[mode] = _block(engines[mode], prompts)
            times[mode] += taken
        lengths = {mode: len(values) for mode, values in times.items()}
        if not times["fixed"]:
            raise EngineError(
                f"no step had all {requests} requests decoding",
                allowed=f"blocks in which {requests} requests decode together",
                remedy="leave the KV pool large enough: unset ADAVERIFY_ENGINE_NUM_PAGES",
            )
        if emitted["adaptive"] != emitted["fixed"] or len(set(lengths.values())) > 1:
            raise WrongValueError(
                f"adaptive and fixed verification parted in block {block} at {requests} requests",
                arrived=lengths,
                allowed="identical tokens in as many steps",
                remedy="report it with this command; its times are not comparable",
            )
        options.timer.synchronize()
    return times, engines["fixed"].stats.mean_budget


def _block(engine: Engine, prompts: Sequence[Sequence[int]]) -> tuple[list[float], list[tuple[int, ...]]]:
    """Run one set of prompts; return the times of steps in which all of them decode, and all tokens."""
    ids = [engine.add(prompt, _sampling()) for prompt in prompts]
    decoding: set[int] = set()
    times: list[float] = []
    while not engine.idle:
        whole = len(decoding) == len(ids)
        begin = perf_counter()
        events = engine.step()
        seconds = perf_counter() - begin
        ended = any(event.finished is not None for event in events)
        if whole and not ended:
            times.append(1e6 * seconds)
        if ended:
            break
        decoding |= {event.request for event in events}
    done = engine.run()
    return times, [done[request].tokens for request in ids]
