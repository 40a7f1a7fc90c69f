"""Stage ``capture``: capturing the ragged ladder beside full batches only, and what ladders waste."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any

from adaverify.bench.endtoend.deck import Deck
from adaverify.bench.endtoend.ground import Ground
from adaverify_contracts import Limits
from adaverify_graphs import choose_ladder

LEVELS = {"fixed": "uniform", "adaptive": "varlen"}
REQUESTS = {"cuda": 16, "cpu": 2}
# Rounds stop early once they have taken this long; how many there were is reported.
BUDGET_SECONDS = 150.0
LEAST_ROUNDS = 3
LIMITED = (8, 16, 32)


def measure_capture(ground: Ground, requests: int) -> dict[str, Any]:
    """Capture all multiples of K + 1 for full batches, and for ragged ones, in turn; JSON-ready results."""
    drafts = ground.text.drafts
    multiples = tuple((drafts + 1) * count for count in range(1, requests + 1))
    found: dict[str, list[tuple[float, int, int]]] = {name: [] for name in LEVELS}
    begun, rounds = perf_counter(), 0
    # The first capture of a process compiles kernels: it is nobody's.
    _once(ground, requests, multiples, "varlen")
    while rounds < ground.options.repeat:
        for name in LEVELS if rounds % 2 == 0 else reversed(LEVELS):
            found[name].append(_once(ground, requests, multiples, LEVELS[name]))
        rounds += 1
        if rounds >= LEAST_ROUNDS and perf_counter() - begun > BUDGET_SECONDS:
            break
    value: dict[str, Any] = {"requests": requests, "rounds": rounds}
    for name, runs in found.items():
        value[name] = {
            "graphs": runs[-1][2],
            "seconds": median(run[0] for run in runs),
            "seconds_low": min(run[0] for run in runs),
            "seconds_high": max(run[0] for run in runs),
            "pool_bytes": median(run[1] for run in runs),
        }
    value["seconds_ratio"] = value["adaptive"]["seconds"] / value["fixed"]["seconds"]
    held = value["fixed"]["pool_bytes"]
    value["bytes_ratio"] = value["adaptive"]["pool_bytes"] / held if held else None
    return value


def _once(ground: Ground, requests: int, tiers: tuple[int, ...], level: str) -> tuple[float, int, int]:
    deck = Deck(ground, requests, tiers=tiers, level=level)
    report = deck.report
    deck.close()
    return report.seconds, report.pool_bytes, len(report.captured)


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
