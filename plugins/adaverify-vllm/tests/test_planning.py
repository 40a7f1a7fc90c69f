"""The bridge's planner decides as the package's manager does, from the same history."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adaverify_contracts import (
    BudgetReads,
    Limits,
    PolicyDescriptor,
    Seen,
    SignalDescriptor,
    StepState,
)
from adaverify_verification import (
    CostModel,
    CostTable,
    Fingerprint,
    ManagerOptions,
    RatioPolicy,
    VerificationManager,
)

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)


class AsTheyAre:
    """A signal whose confidences are the scores: vLLM hands probabilities over."""

    def __init__(self, limits, device):
        pass

    def confidences(self, scores, slots):
        return scores

    def learn(self, outcome):
        pass

    def forget(self, slot):
        pass

    def ready(self):
        return True, "as they are"


def managers(made, options, price, rows_limit):
    """Return the package's manager with the prices that the bridge has profiled."""
    limits = Limits(made.state.max_num_reqs, 7, 4096, 64)
    points = [(tokens, 1, 8192, price(tokens) / 1000) for tokens in (*SIZES, 192, 256, 512)]
    points.append((129, 1, 8192, price(192) / 1000))
    table = CostTable.from_points(Fingerprint.from_mapping({"device": "cpu"}), points)
    return VerificationManager(
        limits,
        "cpu",
        signal=SignalDescriptor("as-they-are", Seen.HISTORY, True, AsTheyAre),
        policy=PolicyDescriptor("ratio", BudgetReads.HISTORY, RatioPolicy),
        cost=CostModel(table, online=False),
        tiers=SIZES,
        options=ManagerOptions(**(options | {"mixed_tiers": True, "online": False})),
        drafter_seen=Seen.PREFIX,
        drafter_deterministic=False,
    )


@pytest.mark.parametrize("seed", range(16))
def test_budgets_states_and_tiers_are_those_of_the_manager(drive, seed):
    """Over a run of steps, guard, hysteresis and exploration included."""
    rng = np.random.default_rng(seed)
    options = {"margin": 0.02, "hysteresis": 0.005, "explore_share": 0.05 * (seed % 2)}
    slope, base, limit = (
        float(rng.uniform(0.01, 0.5)),
        float(rng.uniform(1, 30)),
        int(rng.choice([20, 10**6])),
    )

    def price(tokens):
        return base + slope * tokens

    made = drive(rows_limit=limit, **options)
    # Neither learns here: what the bridge measures of no model would be news to it alone.
    made.manager.outcomes._learns = False
    made.price(price, SIZES, drafting=0.0)
    theirs = managers(made, options, price, limit)
    names = [f"r{i}" for i in range(int(rng.integers(1, 13)))]
    made.add(*names)
    slots = np.array([made.state.req_id_to_index[name] for name in names])
    generations = made.manager.history.generations[slots].copy()
    states = set()
    for step in range(12):
        if step:
            drawn = rng.uniform(0, 1, (len(names), 7)).astype(np.float32) ** 0.5
            theirs.publish(step, slots, generations, torch.from_numpy(drawn))
            made.record(dict(zip(names, drawn, strict=True)))
        scheduled = np.full(len(names), 7)
        plan = theirs.plan(
            StepState(
                step=step,
                slots=slots,
                generations=generations,
                scheduled=scheduled,
                emitting=len(names),
                sampled=True,
                chunk_limit=limit,
            )
        )
        made.step(dict.fromkeys(names, 7))
        decision = made.manager.outcomes._open[step]
        assert (decision.budget, decision.tier) == (plan.budget, plan.tier), plan.reason
        assert decision.state is plan.state
        assert decision.lag == plan.lag
        assert decision.tokens == pytest.approx(plan.predicted_tokens)
        assert decision.seconds == pytest.approx(plan.predicted_seconds)
        states.add(plan.state.value)
    assert states
