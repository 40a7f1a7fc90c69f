"""Stage ``paired``: two query tokens a row against one, in the whole step, over long contexts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from adaverify.bench.endtoend.arms import Fixed, OurSteps
from adaverify.bench.endtoend.deck import Deck
from adaverify.bench.endtoend.ground import Ground
from adaverify.bench.endtoend.rounds import check_arm, run_round
from adaverify.bench.timing import sample
from adaverify_contracts import LimitsError

CONTEXTS = {"cuda": (2048, 8192, 32768), "cpu": (32, 64)}
REQUESTS = {"cuda": 64, "cpu": 4}
STRATEGIES = ("flatten", "paired")
SECONDS = {"cuda": 0.25, "cpu": 0.0}
LEAST = {"cuda": 6, "cpu": 3}
# Weights and caches take so much of the device at most; a step's tensors, both strategies' graphs and the
# driver need the rest.
FILLED = 0.9


def strategies(ground: Ground) -> tuple[str | None, ...]:
    """Return the row strategies to compare; None, the best one alone, where those are not for this device."""
    capability = ground.options.capability
    fit = {
        entry.descriptor.name
        for entry in ground.plugins.decode_strategies()
        if not entry.descriptor.requirements.unmet(capability)
    }
    return STRATEGIES if fit.issuperset(STRATEGIES) else (None,)


def paired_cases(requests: Sequence[int], kind: str) -> Iterator[str]:
    """Yield cases, requests and context: those numbers of requests, or the default where there are none."""
    for count in requests or (REQUESTS[kind],):
        for context in CONTEXTS[kind]:
            yield f"{count} x {context}"


def parsed(case: str) -> tuple[int, int]:
    """Return the requests and the context of a case."""
    count, context = case.split(" x ")
    return int(count), int(context)


def require_room(ground: Ground, requests: int, context: int) -> int:
    """Return the bytes of weights and caches, or refuse a case before anything is allocated.

    Raises:
        LimitsError: they do not fit the device with room for a step's tensors.
    """
    limits, capability = ground.limits(requests, context), ground.options.capability
    page = limits.page_size * ground.model.layers * ground.model.cache_entry_bytes
    fixed, a_request = 2 * ground.model.parameters + page, limits.table_width * page
    needed, room = fixed + requests * a_request, FILLED * capability.memory_bytes
    if room and needed > room:
        raise LimitsError(
            f"{requests} requests of context {context} do not fit the device",
            arrived=f"{needed / 1e9:.1f} GB of weights and caches, {a_request / 1e9:.2f} GB a request",
            allowed=f"{FILLED:.0%} of {capability.memory_bytes / 1e9:.1f} GB",
            remedy=f"take at most {max(0, int((room - fixed) // a_request))} requests at this context",
        )
    return needed


def measure_paired(ground: Ground, requests: int, context: int) -> dict[str, Any]:
    """Time full and half budgets with each strategy on one batch; returns JSON-ready results.

    Raises:
        LimitsError: the batch does not fit the device.
        WrongValueError: a step is not what the records say.
    """
    needed = require_room(ground, requests, context)
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
            "bytes": needed,
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
