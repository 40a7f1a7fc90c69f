"""A whole decode step of the engine: adaptive beside fixed on the same rows, so that only plans differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from time import perf_counter

import torch

from adaverify.bench.launches import check_launches
from adaverify.bench.rows import sample_rows, time_columns
from adaverify.bench.timing import sample
from adaverify.bench.whole import PROMPT, K, periodic_prompts, session_of
from adaverify.session import Session
from adaverify_contracts import (
    BenchmarkCell,
    BenchmarkColumn,
    BenchmarkOptions,
    BenchmarkResult,
    EngineError,
    Sample,
    WrongValueError,
)
from adaverify_engine import Engine, Sampling, compare
from adaverify_engine.results import ResultRing
from adaverify_runtime import Mode
from adaverify_verification import CostTable

REQUESTS = {"cpu": (1, 16), "cuda": (1, 16, 64, 256)}
# At concurrency 1 a difference of half a per cent is to be seen.
STEPS_ALONE, STEPS = 1000, 200
# Long enough on a card that a block has many steps behind its prompts.
OUTPUT = {"cpu": 96, "cuda": 480}
# Steps after the last prompt that do not count: the first launches two.
SETTLING = 2
# A wait for results no longer than reading them takes, and this, says that the device was done before.
LATE_US = 10.0
READS = 50
HOST_PHASES = ("draft", "plan", "accept", "observe")
# Priced, and dearer by less than the margin that trimming has to win: the planner does all its work and
# verifies everything. A flat table (below 1 %) would leave the steps unpriced.
SLOPE = 0.015
MODES: tuple[Mode, ...] = ("adaptive", "fixed")


@dataclass(slots=True)
class Steps:
    """What one mode's counted steps took.

    Attributes:
        read_us: what reading results takes that lie there already; part of the phase ``forward``.
        us: time of each step; blocks: the median of each block.
        phases: total microseconds by phase.
        host: of each step, host work in microseconds; waits: the wait for results in the same step.
    """

    read_us: float = 0.0
    us: list[float] = field(default_factory=list)
    blocks: list[float] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    host: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def add(self, us: float, phases: dict[str, float]) -> None:
        """Count one step."""
        self.us.append(us)
        for name, seconds in phases.items():
            self.phases[name] += 1e6 * seconds
        self.host.append(self.read_us + 1e6 * sum(phases[name] for name in HOST_PHASES))
        self.waits.append(max(0.0, 1e6 * phases["forward"] - self.read_us))

    @property
    def unhidden(self) -> float:
        """Share of host work in steps whose results had arrived before they were asked for."""
        late = sum(host for host, wait in zip(self.host, self.waits, strict=True) if wait < LATE_US)
        return late / sum(self.host) if sum(self.host) else 0.0

    def facts(self, ahead: bool) -> dict[str, object]:
        """Return phases, host time and what of it is not hidden, JSON-ready."""
        count = max(1, len(self.us))
        return {
            "phase_us": {name: round(total / count, 2) for name, total in self.phases.items()},
            "unhidden_share": round(self.unhidden, 4) if ahead else None,
            "read_us": round(self.read_us, 2) if ahead else None,
        }


def run(options: BenchmarkOptions) -> BenchmarkResult:
    """Check that both modes emit the same tokens from the same rows, then time their steps in turn."""
    session, notes = session_of(options)
    kind = "cpu" if options.device.startswith("cpu") else "cuda"
    sizes = options.requests or REQUESTS[kind]
    sampling = Sampling(max_tokens=OUTPUT[kind], ignore_stop_tokens=True)
    rows: list[tuple[BenchmarkCell, ...]] = []
    counts: dict[str, int] = {}
    host: dict[str, dict[str, object]] = {}
    launches: dict[str, dict[str, dict[str, float]]] = {}
    captured = True
    for done, requests in enumerate(sizes):
        options.progress(2 * done, 2 * len(sizes), f"capturing and checking {requests} requests")
        engines = _engines(session.sized(requests, PROMPT + OUTPUT[kind], engines=len(MODES)))
        try:
            whole = all(engine.pipeline is not None for engine in engines.values())
            captured &= whole
            _check(engines, requests, sampling)
            if whole and kind == "cuda":
                launches[str(requests)] = {
                    str(mode): check_launches(engines[mode], requests, sampling) for mode in MODES
                }
            options.progress(2 * done + 1, 2 * len(sizes), f"stepping {requests} requests")
            wanted = options.steps or (STEPS_ALONE if requests == 1 else STEPS)
            steps, verified = _measure(options, engines, requests, wanted, sampling)
        finally:
            for engine in engines.values():
                engine.verifier.close()
        del engines
        counts[str(requests)] = len(steps["fixed"].us)
        ahead = whole and kind == "cuda"
        host[str(requests)] = {mode: one.facts(ahead) for mode, one in steps.items()}
        rows += _rows(requests, steps, verified, ahead)
    geometry = session.model.model.geometry
    return BenchmarkResult(
        columns=_columns(),
        rows=tuple(rows),
        checks=_checks(launches),
        data=f"{geometry.name}, {session.options.dtype}, K {K}, {session.drafter.name} drafts, periodic "
        f"prompts of {PROMPT} tokens, up to {OUTPUT[kind]} output tokens, stop tokens ignored",
        cache="warm: both engines ran the same prompts before; blocks of one set of prompts alternate, and "
        "the mode that goes first changes every block",
        notes=(*_notes(captured), *notes),
        facts={
            "model": geometry.name,
            "dtype": session.options.dtype,
            "threads": torch.get_num_threads(),
            "steps": counts,
            "captured": captured,
            "host": host,
            "launches": launches,
        },
    )


def _columns() -> tuple[BenchmarkColumn, ...]:
    return (
        BenchmarkColumn("requests"),
        BenchmarkColumn("steps"),
        BenchmarkColumn("drafts", "verified a step"),
        *time_columns("step"),
        BenchmarkColumn("block_ratio", "fixed / adaptive"),
        BenchmarkColumn("block_ratio_low", "fixed / adaptive"),
        BenchmarkColumn("block_ratio_high", "fixed / adaptive"),
        BenchmarkColumn("host_work_us", "us"),
        BenchmarkColumn("wait_us", "us"),
        BenchmarkColumn("unhidden_share"),
    )


def _checks(launches: dict[str, dict[str, dict[str, float]]]) -> tuple[str, ...]:
    same = (
        "both modes emit identical greedy tokens and verify the same number of drafts in the same "
        "number of steps, before and during the measurement"
    )
    if not launches:
        return (same, "launches are not counted: no step here is a graph on a card")
    if not all(one for modes in launches.values() for one in modes.values()):
        unseen = "captured steps make no synchronising call; the profiler records no launches on this machine"
        return (same, unseen)
    return (
        same,
        (
            "captured steps, with synchronising calls an error: one graph launch a step, no waiting copy, no "
            "stream synchronised; the host waits for the event behind a step's results alone"
        ),
    )


def _notes(captured: bool) -> tuple[str, ...]:
    what = (
        "a step is the time between successive results, since the next one is launched before a step is read"
        if captured
        else "a step is the time between successive results; steps ran eagerly: no graph was captured"
    )
    return (
        (
            f"{what}; prices rise by {100 * SLOPE:g} % from one token to all, too little for trimming, so "
            "adaptive plans and verifies everything"
        ),
        "block ratio: median and quartiles over pairs of blocks with the same prompts, one block a mode",
        (
            "host work: launching, reading, handing out, learning; wait: for results. unhidden share: of "
            f"the host work, that of steps whose wait was below {LATE_US:g} us, so that the device may have "
            "been idle for some of it: an upper bound. All three on a card only, where steps run ahead"
        ),
    )


def _rows(
    requests: int, steps: dict[str, Steps], verified: float, ahead: bool
) -> list[tuple[BenchmarkCell, ...]]:
    samples = {name: {"step": sample(one.us)} for name, one in steps.items()}
    pairs = zip(steps["fixed"].blocks, steps["adaptive"].blocks, strict=True)
    ratio = sample([fixed / adaptive for fixed, adaptive in pairs])
    made = sample_rows((requests, len(steps["fixed"].us), round(verified, 2)), samples, "step")
    return [
        (*row, *_ratio_cells(ratio if mode == "adaptive" else None), *_host_cells(one, ahead))
        for row, (mode, one) in zip(made, steps.items(), strict=True)
    ]


def _ratio_cells(ratio: Sample | None) -> tuple[BenchmarkCell, ...]:
    if ratio is None:
        return None, None, None
    return round(ratio.median, 4), round(ratio.low, 4), round(ratio.high, 4)


def _host_cells(steps: Steps, ahead: bool) -> tuple[BenchmarkCell, ...]:
    if not ahead:
        return None, None, None
    return round(fmean(steps.host), 2), round(fmean(steps.waits), 2), round(steps.unhidden, 4)


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


def _check(engines: dict[str, Engine], requests: int, sampling: Sampling) -> None:
    """Require identical tokens and equal counts over whole runs.

    Raises:
        WrongValueError: says where the modes differ.
    """
    ordered = {mode: engines[mode] for mode in ("fixed", "adaptive")}
    result = compare(ordered, periodic_prompts(requests, 0), sampling, rounds=1, warmup=1)
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
    options: BenchmarkOptions, engines: dict[str, Engine], requests: int, wanted: int, sampling: Sampling
) -> tuple[dict[str, Steps], float]:
    """Return what steps took by mode, interleaved in blocks, and the mean number of verified drafts."""
    found = {mode: Steps(read_us(options, engine, requests)) for mode, engine in engines.items()}
    for engine in engines.values():
        engine.reset_stats()
    block = 0
    while len(found["fixed"].us) < wanted:
        block += 1
        prompts = periodic_prompts(requests, block)
        emitted = {}
        for mode in MODES if block % 2 else reversed(MODES):
            emitted[mode] = _block(engines[mode], prompts, sampling, found[mode])
            options.timer.synchronize()
        lengths = {mode: len(one.us) for mode, one in found.items()}
        if not any(lengths.values()):
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
    return found, engines["fixed"].stats.mean_budget


def read_us(options: BenchmarkOptions, engine: Engine, requests: int) -> float:
    """Return what it takes to read results that have arrived, in us; 0 for an engine that runs eagerly."""
    if engine.pipeline is None:
        return 0.0
    ring = ResultRing(engine.options.limits, torch.device(options.device))
    taken = []
    for _ in range(READS):
        index = ring.send()
        options.timer.synchronize()
        begin = perf_counter()
        ring.take(index, requests)
        taken.append(1e6 * (perf_counter() - begin))
    return median(taken)


def _block(
    engine: Engine, prompts: Sequence[Sequence[int]], sampling: Sampling, kept: Steps
) -> list[tuple[int, ...]]:
    """Run one set of prompts, count the steps in which all of them decode, and return all tokens."""
    ids = [engine.add(prompt, sampling) for prompt in prompts]
    decoding: set[int] = set()
    settling, first = SETTLING, len(kept.us)
    seconds = engine.stats.seconds
    last, phases = perf_counter(), dict(seconds)
    while not engine.idle:
        whole = len(decoding) == len(ids)
        events = engine.step()
        now, before = perf_counter(), phases
        phases = dict(seconds)
        if any(event.finished is not None for event in events):
            break
        if not whole:
            decoding |= {event.request for event in events}
        elif settling:
            settling -= 1
        else:
            kept.add(1e6 * (now - last), {name: phases[name] - before[name] for name in phases})
        last = now
    done = engine.run()
    if len(kept.us) > first:
        kept.blocks.append(median(kept.us[first:]))
    return [done[request].tokens for request in ids]
