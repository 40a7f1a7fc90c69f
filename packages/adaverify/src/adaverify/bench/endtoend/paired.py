"""Stage ``paired``: two query tokens a row against one, in the whole step, over long contexts."""

from __future__ import annotations

from statistics import median
from typing import Any

from adaverify.bench.endtoend.arms import Fixed, OurSteps
from adaverify.bench.endtoend.deck import Deck
from adaverify.bench.endtoend.ground import Ground
from adaverify.bench.endtoend.rounds import check_arm, run_round
from adaverify.bench.timing import sample
from adaverify_contracts import BenchmarkOptions

CONTEXTS = {"cuda": (2048, 8192, 32768), "cpu": (32, 64)}
REQUESTS = {"cuda": 64, "cpu": 4}
STRATEGIES = ("flatten", "paired")
SECONDS = {"cuda": 0.25, "cpu": 0.0}
LEAST = {"cuda": 6, "cpu": 3}


def strategies(ground: Ground) -> tuple[str | None, ...]:
    """Return the row strategies to compare; None, the best one alone, where those are not for this device."""
    capability = ground.options.capability
    fit = {
        entry.descriptor.name
        for entry in ground.plugins.decode_strategies()
        if not entry.descriptor.requirements.unmet(capability)
    }
    return STRATEGIES if fit.issuperset(STRATEGIES) else (None,)


def paired_requests(options: BenchmarkOptions, kind: str) -> int:
    """Return the number of requests: the named one of these sizes, or the default."""
    return options.requests[-1] if options.requests else REQUESTS[kind]


def measure_paired(ground: Ground, context: int) -> dict[str, Any]:
    """Time full and half budgets with each strategy on one batch; returns JSON-ready results.

    Raises:
        WrongValueError: a step is not what the records say.
    """
    requests = paired_requests(ground.options, ground.kind)
    drafts = ground.text.drafts
    made = ground.body(requests, context)
    tiers = (requests * (drafts + 1) // 2, requests * (drafts + 1))
    decks: dict[str, Deck] = {}
    try:
        for name in strategies(ground):
            deck = Deck(ground, requests, context=context, strategy=name, made=made, tiers=tiers)
            decks[name or "default"] = deck
        return {
            "requests": requests,
            "context": context,
            "rounds": ground.options.repeat,
            "tiers": {str(tier): _at(decks, tier) for tier in tiers},
        }
    finally:
        for deck in decks.values():
            deck.close()


def _at(decks: dict[str, Deck], tier: int) -> dict[str, Any]:
    arms: dict[str, OurSteps] = {}
    counts: dict[str, int] = {}
    for name, deck in decks.items():
        text, requests = deck.ground.text, deck.requests
        arms[name] = OurSteps(deck, Fixed(deck, text.drafts, tier - requests))
        check_arm(f"{name} at {tier} tokens", arms[name], text, text.starts(requests, 0))
        kind = deck.ground.kind
        once = median(run_round(arms[name], text.starts(requests, 0), least=LEAST[kind]).step_seconds)
        counts[name] = max(LEAST[kind], int(SECONDS[kind] / once))
    times: dict[str, list[float]] = {name: [] for name in decks}
    names = list(decks)
    repeat = next(iter(decks.values())).ground.options.repeat
    for number in range(repeat):
        for name in names if number % 2 == 0 else names[::-1]:
            deck = decks[name]
            starts = deck.ground.text.starts(deck.requests, number)
            found = run_round(arms[name], starts, least=counts[name])
            times[name].append(1e6 * median(found.step_seconds))
    found_all: dict[str, Any] = {}
    for name, values in times.items():
        one = sample(values)
        found_all[name] = {"step_us": one.median, "step_us_low": one.low, "step_us_high": one.high}
    if len(names) > 1:
        ratio = sample([flat / pair for flat, pair in zip(times[names[0]], times[names[1]], strict=True)])
        found_all["ratio"] = {"median": ratio.median, "low": ratio.low, "high": ratio.high}
    return found_all
