"""Stage ``arms``: every policy and the published arrangement over the same text, round after round."""

from __future__ import annotations

from collections import Counter
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
from adaverify.bench.endtoend.ratios import ratios
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
            starts = ground.text.starts(requests, number, ground.options.repeat)
            rounds[name].append(run_round(arms[name], starts, tokens=tokens))
        tell(f"round {number + 1} of {ground.options.repeat}")
    compared = ratios(rounds, deck.limits.draft_tokens)
    if ground.options.repeat == 1:
        tell("one round has no spread: what stands in brackets below says nothing of how sure a ratio is")
    for pair, one in compared.items():
        if "median" in one:
            rounds_say = f"{one['median']:.4f} ({one['low']:.4f} to {one['high']:.4f})"
            all_say = f"{one['total']:.4f} ({one['total_low']:.4f} to {one['total_high']:.4f})"
            tell(f"{pair}: {rounds_say}; all text {all_say}")
    return {
        "requests": requests,
        "context": deck.context,
        "rounds": ground.options.repeat,
        "tokens_a_round": tokens,
        "text_passed": tokens * ground.options.repeat / len(ground.text.accepted),
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
        "lags": _lags(rounds, steps),
        "accepted_length": sum(one.tokens for one in rounds) / (steps * rounds[0].requests),
        "waste": 1.0 - accepted / verified if verified else 0.0,
        "host_us": 1e6 * sum(one.host for one in rounds) / steps,
        "waited_us": 1e6 * sum(one.waited for one in rounds) / steps,
    }


def _lags(rounds: list[Round], steps: int) -> dict[str, float]:
    """Return the share of steps by the age of the confidences that sized them, the commonest first."""
    counted: Counter[int | None] = Counter()
    for one in rounds:
        counted.update(one.lags)
    return {"none" if lag is None else str(lag): count / steps for lag, count in counted.most_common()}
