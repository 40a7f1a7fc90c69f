"""Stage ``shares``: equal budgets in all arrangements, and what of each step is not the model."""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np
import torch

from adaverify.bench.endtoend.arms import Adaptive, OurSteps
from adaverify.bench.endtoend.baseline import PUBLISHED, PUBLISHED_AHEAD, BaselineSteps, BodyGraphs
from adaverify.bench.endtoend.curve import table_of
from adaverify.bench.endtoend.deck import Curve, Deck, tier_of
from adaverify.bench.endtoend.rounds import SETTLE, Steps, check_arm, launched, run_round
from adaverify.bench.endtoend.stamps import Stamps, model_and_beside
from adaverify.bench.timing import sample
from adaverify_engine.flight import AHEAD
from adaverify_verification import CostTable

SECONDS = {"cuda": 0.25, "cpu": 0.0}
LEAST = {"cuda": 8, "cpu": 3}
OURS = "ours"
THEIRS = (PUBLISHED, PUBLISHED_AHEAD)
# Memory held back while a round captures, so that no round's tensors lie where another's did: a kernel's time
# depends on that by as much as these arrangements differ.
SHIFT_BYTES = 38 * 2**20

Figures = dict[str, dict[str, list[float]]]
"""Values by arrangement and figure, one for each round."""


def measure_shares(deck: Deck, measured: dict[str, Any]) -> dict[str, Any]:
    """Time steps of all arrangements at the same budgets, and within each step its model.

    All plan as ever, and the given budget runs. Every round captures both arrangements again, with the
    device's clock read before and after the model. What is beside the model is the time from the end of one
    model to the beginning of the next, so it is each arrangement's own, whatever its model takes: that
    depends on the experts that tokens meet, and on where tensors lie.

    Args:
        deck: captured steps of all sizes, whose curve all plan by.
        measured: the kept curve.

    Returns:
        JSON-ready results by budget.

    Raises:
        WrongValueError: an arm is not what the records say.
    """
    requests, drafts = deck.requests, deck.limits.draft_tokens
    table = table_of(deck, measured)
    curve = deck.price(table)
    budgets = (requests * ((drafts + 1) // 2), requests * drafts)
    found: dict[int, Figures] = {budget: {} for budget in budgets}
    for number in range(deck.ground.options.repeat):
        deck.ground.release()
        shifted = torch.empty(number * SHIFT_BYTES, dtype=torch.uint8, device=deck.ground.device)
        _round(deck, table, curve, number, found)
        del shifted
    return {
        "requests": requests,
        "context": deck.context,
        "rounds": deck.ground.options.repeat,
        "budgets": {
            str(budget): {
                "tier": tier_of(deck.tiers, requests + budget),
                "steps_a_round": _count(deck, curve, budget),
                **_reported(figures),
            }
            for budget, figures in found.items()
        },
    }


def _count(deck: Deck, curve: Curve, budget: int) -> int:
    """Return the steps of a round."""
    kind, tier = deck.ground.kind, tier_of(deck.tiers, deck.requests + budget)
    guess = float(curve.seconds[int(curve.tiers.searchsorted(tier))])
    return max(LEAST[kind], int(SECONDS[kind] / guess))


def _round(deck: Deck, table: CostTable, curve: Curve, number: int, found: dict[int, Figures]) -> None:
    """Capture both arrangements at the sizes of ``found``, check them, and time every arm once."""
    ground, requests = deck.ground, deck.requests
    counts = {budget: _count(deck, curve, budget) for budget in found}
    # A round lasts as long whatever its steps take, so that a faster machine or a smaller model marks more.
    stamps = Stamps(ground.device, launched(AHEAD, max(counts.values())))
    tiers = tuple(tier_of(deck.tiers, requests + budget) for budget in found)
    own = Deck(ground, requests, context=deck.context, tiers=tiers, stamps=stamps)
    try:
        own.price(table)
        # The planner weighs as many sizes as it does where all of them are captured.
        own.verifier.manager.set_tiers(deck.verifier.tiers)
        graphs = BodyGraphs(own)
        graphs.capture()
        for budget, figures in found.items():
            arms: dict[str, Steps] = {
                OURS: OurSteps(own, Adaptive(own, budget)),
                PUBLISHED: BaselineSteps(own, graphs, curve, budget=budget, waits=True),
                PUBLISHED_AHEAD: BaselineSteps(own, graphs, curve, budget=budget),
            }
            for name in arms if number % 2 == 0 else reversed(arms):
                check_arm(
                    f"{name} at budget {budget}", arms[name], ground.text, ground.text.starts(requests, 0)
                )
                stamps.clear()
                starts = ground.text.starts(requests, number)
                ran = run_round(arms[name], starts, least=counts[budget])
                model, beside = model_and_beside(stamps, SETTLE)
                values = {
                    "step": 1e6 * median(ran.step_seconds),
                    "mean": 1e6 * ran.seconds / ran.steps,
                    "host": 1e6 * ran.host / ran.steps,
                    "model": float(np.median(model)),
                    "beside": float(np.median(beside)),
                }
                kept = figures.setdefault(name, {})
                for figure, value in values.items():
                    kept.setdefault(figure, []).append(value)
    finally:
        own.close()


def _reported(figures: Figures) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, of in figures.items():
        step, model, beside = sample(of["step"]), sample(of["model"]), sample(of["beside"])
        found[name] = {
            "step_us": step.median,
            "step_us_low": step.low,
            "step_us_high": step.high,
            "mean_step_us": median(of["mean"]),
            "model_us": model.median,
            "model_us_low": model.low,
            "model_us_high": model.high,
            "beside_model_us": beside.median,
            "beside_model_us_low": beside.low,
            "beside_model_us_high": beside.high,
            "share": beside.median / step.median,
            "host_us": median(of["host"]),
        }
    for name in THEIRS:
        for figure in ("step", "model", "beside"):
            pairs = zip(figures[name][figure], figures[OURS][figure], strict=True)
            one = sample([theirs / ours for theirs, ours in pairs])
            found[name][f"{figure}_ratio"] = {"median": one.median, "low": one.low, "high": one.high}
    return found
