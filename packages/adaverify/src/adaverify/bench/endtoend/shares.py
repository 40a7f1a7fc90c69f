"""Stage ``shares``: equal budgets on the same batch in both arrangements, less the model alone."""

from __future__ import annotations

from statistics import median
from typing import Any

from adaverify.bench.endtoend.arms import Adaptive, OurSteps
from adaverify.bench.endtoend.baseline import BaselineSteps, BodyGraphs
from adaverify.bench.endtoend.deck import Curve, Deck, tier_of
from adaverify.bench.endtoend.rounds import SETTLE, Steps, check_arm, run_round
from adaverify.bench.timing import sample

SECONDS = {"cuda": 0.25, "cpu": 0.0}
LEAST = {"cuda": 8, "cpu": 3}


def measure_shares(deck: Deck, graphs: BodyGraphs, curve: Curve) -> dict[str, Any]:
    """Time steps of both arrangements at the same budgets, and the model alone within such steps.

    Both plan as ever, and the given budget runs. The model's time depends on the experts that its tokens
    meet, so it is taken over the same text as the steps. Returns JSON-ready results by budget.

    Raises:
        WrongValueError: an arm is not what the records say.
    """
    requests, drafts = deck.requests, deck.limits.draft_tokens
    half = requests * ((drafts + 1) // 2)
    return {
        "requests": requests,
        "context": deck.context,
        "rounds": deck.ground.options.repeat,
        "budgets": {str(budget): _at(deck, graphs, curve, budget) for budget in (half, requests * drafts)},
    }


def _at(deck: Deck, graphs: BodyGraphs, curve: Curve, budget: int) -> dict[str, Any]:
    text, requests, kind = deck.ground.text, deck.requests, deck.ground.kind
    tier = tier_of(deck.tiers, requests + budget)
    arms: dict[str, Steps] = {
        "ours": OurSteps(deck, Adaptive(deck, budget)),
        "baseline": BaselineSteps(deck, graphs, curve, budget=budget),
    }
    for name, steps in arms.items():
        check_arm(f"{name} at budget {budget}", steps, text, text.starts(requests, 0))
    guess = float(curve.seconds[int(curve.tiers.searchsorted(tier))])
    count = max(LEAST[kind], int(SECONDS[kind] / guess))
    marked = BaselineSteps(deck, graphs, curve, budget=budget, marked=True)
    times: dict[str, list[float]] = {"model": [], **{name: [] for name in arms}}
    means: dict[str, list[float]] = {name: [] for name in arms}
    host: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(deck.ground.options.repeat):
        starts = text.starts(requests, number)
        order = ["model", *arms] if number % 2 == 0 else [*reversed(arms), "model"]
        for name in order:
            if name == "model":
                run_round(marked, starts, least=count)
                times[name].append(1e6 * median(marked.model_seconds[SETTLE:]))
                continue
            found = run_round(arms[name], starts, least=count)
            times[name].append(1e6 * median(found.step_seconds))
            means[name].append(1e6 * found.seconds / found.steps)
            host[name].append(1e6 * found.host / found.steps)
    return {"tier": tier, "steps_a_round": count, **_reported(times, means, host)}


def _reported(
    times: dict[str, list[float]], means: dict[str, list[float]], host: dict[str, list[float]]
) -> dict[str, Any]:
    model = sample(times["model"])
    found: dict[str, Any] = {"model_us": model.median, "model_us_low": model.low, "model_us_high": model.high}
    for name in ("ours", "baseline"):
        step = sample(times[name])
        beside = [one - alone for one, alone in zip(times[name], times["model"], strict=True)]
        found[name] = {
            "step_us": step.median,
            "step_us_low": step.low,
            "step_us_high": step.high,
            "mean_step_us": median(means[name]),
            "beside_model_us": median(beside),
            "share": median(beside) / step.median,
            "host_us": median(host[name]),
        }
    ratio = sample([base / own for base, own in zip(times["baseline"], times["ours"], strict=True)])
    found["beside_ratio"] = found["ours"]["beside_model_us"] / found["baseline"]["beside_model_us"]
    found["ratio"] = {"median": ratio.median, "low": ratio.low, "high": ratio.high}
    return found
