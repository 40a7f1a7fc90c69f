"""Stage ``curve``: seconds of a whole step at every captured size, as the arms will run it."""

from __future__ import annotations

from statistics import median
from typing import Any

from adaverify.bench.endtoend.arms import Fixed, OurSteps
from adaverify.bench.endtoend.deck import Deck
from adaverify.bench.endtoend.rounds import check_arm, run_round
from adaverify_verification import CostTable

SECONDS = {"cuda": 0.15, "cpu": 0.0}
LEAST, MOST, ROUNDS = {"cuda": 6, "cpu": 3}, 60, 3


def measure_curve(deck: Deck) -> dict[str, Any]:
    """Check the captured steps against the records, then time each tier; returns JSON-ready points.

    Raises:
        WrongValueError: a step is not what the records say.
    """
    ground, requests = deck.ground, deck.requests
    drafts = deck.limits.draft_tokens
    arms = {tier: OurSteps(deck, Fixed(deck, drafts, tier - requests)) for tier in deck.tiers}
    starts = ground.text.starts(requests, 0)
    for tier in (deck.tiers[0], deck.tiers[len(deck.tiers) // 2], deck.tiers[-1]):
        check_arm(f"budget {tier - requests}", arms[tier], ground.text, starts)
    times: dict[int, list[float]] = {tier: [] for tier in deck.tiers}
    counted = dict.fromkeys(deck.tiers, 0)
    least = LEAST[ground.kind]
    rounds = min(ROUNDS, ground.options.repeat)
    for number in range(rounds):
        for tier, steps in arms.items():
            # The first round is short, and says how many steps the others may take.
            once = times[tier][0] if times[tier] else SECONDS[ground.kind]
            count = max(least, min(MOST, int(SECONDS[ground.kind] / once) if once else least))
            found = run_round(steps, ground.text.starts(requests, number), least=count)
            times[tier].append(median(found.step_seconds))
            counted[tier] += found.steps
    return {
        "requests": requests,
        "context": deck.context,
        "rounds": rounds,
        "model": dict(ground.body().facts),
        "tiers": list(deck.verifier.tiers),
        "capture_seconds": deck.report.seconds,
        "pool_bytes": deck.report.pool_bytes,
        "points": [
            {
                "tokens": tier,
                "seconds": median(values),
                "low": min(values),
                "high": max(values),
                "steps": counted[tier],
            }
            for tier, values in times.items()
        ],
    }


def table_of(deck: Deck, measured: dict[str, Any]) -> CostTable:
    """Return the cost table of measured points."""
    points = [
        (int(point["tokens"]), deck.requests, deck.context, float(point["seconds"]))
        for point in measured["points"]
    ]
    return CostTable.from_points(deck.ground.fingerprint(deck.verifier.tiers), points)
