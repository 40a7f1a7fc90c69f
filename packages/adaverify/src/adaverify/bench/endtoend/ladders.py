"""Stage ``capture``: capturing the ragged ladder beside full batches only, and what ladders waste."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch

from adaverify.bench.endtoend.deck import Deck
from adaverify.bench.endtoend.ground import Ground
from adaverify_contracts import Limits
from adaverify_graphs import choose_ladder

LEVELS = {"fixed": "uniform", "adaptive": "varlen"}
REQUESTS = {"cuda": 16, "cpu": 2}
# Rounds stop early once they have taken this long; how many there were is reported.
BUDGET_SECONDS = 150.0
LEAST_ROUNDS = 3
# Sizes of a ladder here at most: a size takes 0.3 s, and five rounds of both ladders are to end in minutes.
MOST = 32
SMALL_SEGMENT = 2 * 2**20
_BYTES = (
    "pool_bytes",
    "held_bytes",
    "reserved_bytes",
    "kept_bytes",
    "driver_bytes",
    "small_segments",
    "large_segments",
    "step_bytes",
)
_FIGURES = (*_BYTES, "held_bytes_low", "held_bytes_high")
LIMITED = (8, 16, 32)


@dataclass(frozen=True, slots=True)
class Capture:
    """One ladder, captured once.

    Attributes:
        seconds: of the captures; graphs: how many.
        pool_bytes: device memory that went during each capture, as the captures' own report adds it up.
        reserved_bytes: segments that torch holds for the graphs; small_segments: those of 2 MiB, which serve
            tensors up to 1 MiB; large_segments: the others.
        kept_bytes: of the reserved ones, those that a tensor still owns.
        driver_bytes: what the device lost beyond all that torch holds: the driver's own record of the graphs,
            which it takes from the device and gives back in pieces of its own.
        step_bytes: most that tensors of the largest step own at once.
    """

    seconds: float
    graphs: int
    pool_bytes: int
    reserved_bytes: int = 0
    kept_bytes: int = 0
    driver_bytes: int = 0
    small_segments: int = 0
    large_segments: int = 0
    step_bytes: int = 0

    @property
    def held_bytes(self) -> int:
        """Everything that the captures hold, from before the first to behind the last."""
        return self.reserved_bytes + self.driver_bytes


def captured_sizes(requests: int, drafts: int) -> tuple[int, ...]:
    """Return multiples of K + 1 up to the largest batch: all, or as many evenly spaced ones as ``MOST``."""
    taken = min(requests, MOST)
    return tuple((drafts + 1) * (-(-requests * place // taken)) for place in range(1, taken + 1))


def measure_capture(ground: Ground, requests: int) -> dict[str, Any]:
    """Capture multiples of K + 1 for full batches, and for ragged ones, in turn; JSON-ready results.

    Figures of bytes are None on a CPU, where nothing is captured.
    """
    sizes = captured_sizes(requests, ground.text.drafts)
    found: dict[str, list[Capture]] = {name: [] for name in LEVELS}
    begun, rounds = perf_counter(), 0
    # The first capture of a process compiles kernels, and the first of a level loads them: nobody's.
    for name in LEVELS:
        _once(ground, requests, sizes[-1:], LEVELS[name])
    while rounds < ground.options.repeat:
        for name in LEVELS if rounds % 2 == 0 else reversed(LEVELS):
            found[name].append(_once(ground, requests, sizes, LEVELS[name]))
        rounds += 1
        if rounds >= LEAST_ROUNDS and perf_counter() - begun > BUDGET_SECONDS:
            break
    value: dict[str, Any] = {"requests": requests, "rounds": rounds, "sizes": list(sizes)}
    for name, runs in found.items():
        seconds = [run.seconds for run in runs]
        value[name] = {
            "graphs": runs[-1].graphs,
            "seconds": median(seconds),
            "seconds_low": min(seconds),
            "seconds_high": max(seconds),
            **(_bytes(runs) if ground.kind == "cuda" else dict.fromkeys(_FIGURES)),
        }
    fixed, adaptive = value["fixed"], value["adaptive"]
    value["seconds_ratio"] = adaptive["seconds"] / fixed["seconds"]
    for ratio, figure in (("bytes", "pool"), ("held", "held"), ("reserved", "reserved")):
        base = fixed[f"{figure}_bytes"]
        value[f"{ratio}_ratio"] = adaptive[f"{figure}_bytes"] / base if base else None
    value["ladders"] = compare_ladders(ground.limits(requests, ground.context))
    return value


def _bytes(runs: list[Capture]) -> dict[str, float]:
    """Return ``_FIGURES``; a CPU has none of them."""
    held = [run.held_bytes for run in runs]
    middle = {figure: median(getattr(run, figure) for run in runs) for figure in _BYTES}
    return {**middle, "held_bytes_low": min(held), "held_bytes_high": max(held)}


def _once(ground: Ground, requests: int, tiers: tuple[int, ...], level: str) -> Capture:
    made = ground.body(max(requests, *ground.requests))
    ground.release()
    before = _memory(ground)
    deck = Deck(ground, requests, tiers=tiers, level=level, made=made)
    ground.release()
    after, segments = _memory(ground), graph_segments(ground)
    report = deck.report
    deck.close()
    lost, held = before[0] - after[0], after[1] - before[1]
    small = sum(size == SMALL_SEGMENT for size, _ in segments)
    return Capture(
        seconds=report.seconds,
        graphs=len(report.captured),
        pool_bytes=report.pool_bytes,
        reserved_bytes=sum(size for size, _ in segments),
        kept_bytes=sum(kept for _, kept in segments),
        driver_bytes=lost - held,
        small_segments=small,
        large_segments=len(segments) - small,
        step_bytes=max((size for _, size in report.estimated_bytes), default=0),
    )


def _memory(ground: Ground) -> tuple[int, int]:
    """Return the device's free bytes and those that torch holds; zeros on a CPU."""
    if ground.kind == "cpu":
        return 0, 0
    torch.cuda.synchronize()
    return int(torch.cuda.mem_get_info(ground.device)[0]), int(torch.cuda.memory_reserved(ground.device))


def graph_segments(ground: Ground) -> list[tuple[int, int]]:
    """Return (bytes, bytes that tensors own) of every segment that torch holds for graphs; none on a CPU."""
    if ground.kind == "cpu":
        return []
    return [
        (int(segment["total_size"]), int(segment["allocated_size"]))
        for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        if tuple(segment["segment_pool_id"]) != (0, 0)
    ]


def compare_ladders(limits: Limits) -> list[dict[str, Any]]:
    """Return, for each limit of graphs, the mean padding of the chosen ladder and of evenly spaced sizes.

    A batch of n query tokens weighs 1 / n in both, so that padding counts relative to the batch.
    """
    found = []
    top = limits.max_tokens
    for most in LIMITED:
        if most > top:
            continue
        chosen = choose_ladder(limits, max_graphs=most)
        even = sorted({-(-top * step // most) for step in range(1, most + 1)})
        found.append(
            {
                "limit": most,
                "chosen": list(chosen.tiers),
                "chosen_padding": mean_padding(chosen.tiers, top),
                "even": even,
                "even_padding": mean_padding(tuple(even), top),
            }
        )
    return found


def mean_padding(tiers: tuple[int, ...], top: int) -> float:
    """Return mean padding of batches of 1 .. ``top`` tokens, each weighing 1 / its tokens, over ``tiers``."""
    total = weight = 0.0
    place = 0
    for size in range(1, top + 1):
        while tiers[place] < size:
            place += 1
        total += (tiers[place] - size) / size
        weight += 1.0 / size
    return total / weight
