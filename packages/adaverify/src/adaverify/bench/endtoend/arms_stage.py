"""Stage ``arms``: every policy and the published arrangement over the same text, round after round."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, median
from typing import Any

import numpy as np

from adaverify.bench.endtoend.arms import Adaptive, Fixed, Oracle, OurSteps
from adaverify.bench.endtoend.baseline import (
    PUBLISHED,
    PUBLISHED_AHEAD,
    PUBLISHED_FIXED,
    BaselineSteps,
    BodyGraphs,
)
from adaverify.bench.endtoend.curve import table_of
from adaverify.bench.endtoend.deck import Curve, Deck
from adaverify.bench.endtoend.rounds import Round, Steps, check_arm, run_round
from adaverify.bench.timing import sample

SECONDS = {"cuda": 0.5, "cpu": 0.02}
LEAST = {"cuda": 16, "cpu": 4}
# Adaptive steps before the first round, fewest and most: guard, prices and signal have settled then. The
# signal counts labels, so few requests take more steps.
WARM_LABELS = {"cuda": 1024, "cpu": 32}
WARM_STEPS = {"cuda": (64, 256), "cpu": (4, 8)}

Tell = Callable[[str], None]


def make_arms(deck: Deck, graphs: BodyGraphs, curve: Curve) -> dict[str, Steps]:
    """Return every arm by name, in the order of the first round."""
    drafts = deck.limits.draft_tokens
    arms: dict[str, Steps] = {"none": OurSteps(deck, Fixed(deck, 0))}
    arms |= {f"fixed-{count}": OurSteps(deck, Fixed(deck, count)) for count in range(1, drafts + 1)}
    arms["adaptive"] = OurSteps(deck, Adaptive(deck))
    arms["oracle-budget"] = OurSteps(deck, Oracle(deck, curve, ranked=True))
    arms["oracle"] = OurSteps(deck, Oracle(deck, curve, ranked=False))
    arms[PUBLISHED_FIXED] = BaselineSteps(deck, graphs, None)
    arms[PUBLISHED] = BaselineSteps(deck, graphs, curve, waits=True)
    arms[PUBLISHED_AHEAD] = BaselineSteps(deck, graphs, curve)
    return arms


def measure_arms(deck: Deck, graphs: BodyGraphs, measured: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """Check every arm against the records, then run them in turn; returns JSON-ready results.

    Raises:
        WrongValueError: an arm is not what the records say.
    """
    ground, requests = deck.ground, deck.requests
    curve = deck.price(table_of(deck, measured))
    arms = make_arms(deck, graphs, curve)
    for name, steps in arms.items():
        check_arm(name, steps, ground.text, ground.text.starts(requests, 0))
    tell(f"{len(arms)} arms accept what the records say")
    fewest, most = WARM_STEPS[ground.kind]
    warm = max(fewest, min(most, WARM_LABELS[ground.kind] // requests))
    run_round(arms["adaptive"], ground.text.starts(requests, ground.options.repeat), least=warm)
    tokens = round_tokens(deck, curve)
    rounds: dict[str, list[Round]] = {name: [] for name in arms}
    names = list(arms)
    for number in range(ground.options.repeat):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            starts = ground.text.starts(requests, number)
            rounds[name].append(run_round(arms[name], starts, tokens=tokens))
        tell(f"round {number + 1} of {ground.options.repeat}")
    compared = ratios(rounds, deck.limits.draft_tokens)
    for pair, one in compared.items():
        if "median" in one:
            tell(f"{pair}: {one['median']:.4f} ({one['low']:.4f} to {one['high']:.4f})")
    return {
        "requests": requests,
        "context": deck.context,
        "rounds": ground.options.repeat,
        "tokens_a_round": tokens,
        "arms": {name: summary(found) for name, found in rounds.items()},
        "ratios": compared,
        "counters": dict(deck.verifier.counters),
    }


def round_tokens(deck: Deck, curve: Curve) -> int:
    """Return the tokens of a round: as many as verifying everything emits in the time of a round."""
    kind = deck.ground.kind
    steps = deck.ground.options.steps or max(LEAST[kind], int(SECONDS[kind] / float(curve.seconds[-1])))
    return int(steps * deck.requests * (1.0 + float(np.mean(deck.ground.text.accepted))))


def summary(rounds: list[Round]) -> dict[str, Any]:
    """Return what an arm did, JSON-ready: medians over rounds with quartiles, and each round's rate."""
    rate = sample([one.tokens / one.seconds for one in rounds])
    step = sample([1e6 * median(one.step_seconds) for one in rounds])
    every = np.concatenate([np.array(one.step_seconds) for one in rounds])
    steps = sum(one.steps for one in rounds)
    verified, accepted = sum(one.verified for one in rounds), sum(one.accepted for one in rounds)
    return {
        "tokens_per_s": rate.median,
        "tokens_per_s_low": rate.low,
        "tokens_per_s_high": rate.high,
        "tokens_per_s_rounds": [one.tokens / one.seconds for one in rounds],
        "step_us": step.median,
        "step_us_low": step.low,
        "step_us_high": step.high,
        "step_us_p95": 1e6 * float(np.quantile(every, 0.95)),
        "token_latency_us": 1e6 * fmean(one.seconds * one.requests / one.tokens for one in rounds),
        "steps": steps,
        "verified_a_step": verified / steps,
        "executed_a_step": sum(one.executed for one in rounds) / steps,
        "accepted_length": sum(one.tokens for one in rounds) / (steps * rounds[0].requests),
        "waste": 1.0 - accepted / verified if verified else 0.0,
        "host_us": 1e6 * sum(one.host for one in rounds) / steps,
        "waited_us": 1e6 * sum(one.waited for one in rounds) / steps,
    }


def ratios(rounds: dict[str, list[Round]], drafts: int) -> dict[str, dict[str, float]]:
    """Return ratios of rates round by round: median and quartiles.

    ``adaptive/best`` is against the best of none and the fixed arms, chosen by its median over all rounds;
    regrets are against the two oracles. ``gain over ...`` is what adaptive gains over full verification, over
    what that arm of the published arrangement gains over its own.
    """
    rates = {name: np.array([one.tokens / one.seconds for one in found]) for name, found in rounds.items()}
    plain = ["none", *(f"fixed-{count}" for count in range(1, drafts + 1))]
    best = max(plain, key=lambda name: float(np.median(rates[name])))
    full = f"fixed-{drafts}"
    pairs = {
        f"adaptive/{full}": ("adaptive", full),
        "adaptive/none": ("adaptive", "none"),
        "adaptive/best": ("adaptive", best),
        "adaptive/oracle-budget": ("adaptive", "oracle-budget"),
        "adaptive/oracle": ("adaptive", "oracle"),
        f"{full}/{PUBLISHED_FIXED}": (full, PUBLISHED_FIXED),
    }
    for name in (PUBLISHED, PUBLISHED_AHEAD):
        pairs[f"adaptive/{name}"] = ("adaptive", name)
        pairs[f"{name}/{full}"] = (name, full)
        pairs[f"{name}/{PUBLISHED_FIXED}"] = (name, PUBLISHED_FIXED)
    divided = {name: rates[above] / rates[below] for name, (above, below) in pairs.items()}
    for name in (PUBLISHED, PUBLISHED_AHEAD):
        divided[f"gain over {name}"] = divided[f"adaptive/{full}"] / divided[f"{name}/{PUBLISHED_FIXED}"]
    found: dict[str, dict[str, float]] = {}
    for name, values in divided.items():
        one = sample(values.tolist())
        found[name] = {"median": one.median, "low": one.low, "high": one.high}
    found["best"] = {"drafts": float(plain.index(best))}
    return found
