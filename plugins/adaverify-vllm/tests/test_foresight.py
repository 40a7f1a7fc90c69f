"""A batch beside other chunks of prompts than foreseen gets what planning it anew would give it."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from adaverify_contracts import PlanState
from adaverify_verification import CostModel, CostTable, Fingerprint, ManagerOptions, PricePolicy, RatioPolicy
from adaverify_verification.quantise import SCORE_MAX
from adaverify_vllm.batch import Batch
from adaverify_vllm.planning import BudgetPlanner

TIERS = (1, 2, 4, *range(8, 129, 8))
BEYOND = (129, 192, 256, 512, 1024)
PLAIN = {"margin": 0.0, "hysteresis": 0.0, "explore_share": 0.0, "online": False}


def batch(requests, chunk=0, drafts=7, ends=False):
    """Requests of as many drafts each, and one that reads a chunk of its prompt, the last where it ends."""
    count = requests + bool(chunk)
    scheduled = np.full(count, drafts, dtype=np.int64)
    scheduled[requests:] = 0
    certain = requests + chunk
    emitting = requests + ends
    return Batch(
        np.arange(count), scheduled, scheduled, certain, requests * drafts, emitting, certain - count
    )


def planner(policy=RatioPolicy, rng=None, rows_limit=10**6, **options):
    """A planner with prices of 83 sizes that rise by steps of their own."""
    rng = rng or np.random.default_rng(0)
    tokens = (*TIERS, *BEYOND)
    steps = rng.uniform(0, 0.02, len(tokens)) * np.diff((0, *tokens)) * rng.integers(0, 2, len(tokens))
    seconds = (rng.uniform(1, 10) + np.cumsum(steps)) / 1000
    points = [(count, 1, 8192, float(price)) for count, price in zip(tokens, seconds, strict=True)]
    table = CostTable.from_points(
        Fingerprint.from_mapping({"device": "cpu"}), points, draft=[(1, 0.0001), (64, 0.0003)]
    )
    made = BudgetPlanner(ManagerOptions(**(PLAIN | options)), policy(), rows_limit=rows_limit, bonus=1)
    made.set_cost(CostModel(table, TIERS, online=False), TIERS)
    return made


def survivals(rng, requests, rows):
    """Quantised survivals of a batch of that many rows, some of them all 0."""
    drawn = np.zeros((rows, 7), dtype=np.uint16)
    factor = rng.choice([0.0, 0.3, 0.7, 1.0])
    alive = np.multiply.accumulate(rng.uniform(0, 1, (requests, 7)) ** 0.4, axis=1)
    drawn[:requests] = (factor * alive * SCORE_MAX).astype(np.uint16)
    return drawn


def plan(made, step, of, scores, *, ahead=False):
    choose = made.look_ahead if ahead else made.plan
    return choose(step, of, scores.copy(), lag=1, foreseen=True, odd=None)


@pytest.mark.parametrize("policy", [RatioPolicy, PricePolicy])
@pytest.mark.parametrize("seed", range(60))
def test_another_chunk_is_searched_as_a_new_plan_would_be(policy, seed):
    """Within the captured sizes, across their end and past it; none before, none after, one that ends."""
    rng = np.random.default_rng(seed)
    made, requests = planner(policy, rng), int(rng.integers(1, 19))
    if policy is PricePolicy and seed % 3:
        made.rate.add(int(rng.integers(1, 40)), 0.01)
    chunks = rng.choice([0, 2, 3, 17, 40, 90, 129, 300, 700], 2, replace=False)
    foreseen, came = batch(requests, chunks[0]), batch(requests, chunks[1], ends=bool(seed % 2))
    scores = survivals(rng, requests, requests + 1)
    ahead = plan(made, 3, foreseen, scores[: foreseen.requests], ahead=True)
    want = plan(copy.deepcopy(made), 3, came, scores[: came.requests])
    found = made.adapt(ahead, came)
    if came.emitting == 0 or want.full_tokens <= 0:
        assert found is None
        return
    assert found is not None
    assert (found.budget, found.tier, found.state) == (want.budget, want.tier, want.state)
    assert found.tokens == pytest.approx(want.tokens, rel=1e-12)
    assert found.full_tokens == pytest.approx(want.full_tokens, rel=1e-12)
    assert found.seconds == pytest.approx(want.seconds, rel=1e-12)
    assert found.full_seconds == pytest.approx(want.full_seconds, rel=1e-12)
    assert found.batch is came
    assert found.digest == want.digest


@pytest.mark.parametrize("seed", range(20))
def test_a_request_that_came_is_taken_for_certain(seed):
    """Its drafts count as surviving, as in a plan that knows nothing of it."""
    rng = np.random.default_rng(seed)
    made = planner(rng=rng)
    foreseen, came = batch(12, 60), batch(13, 30)
    scores = survivals(rng, 12, 13)
    ahead = plan(made, 3, foreseen, scores, ahead=True)
    scores[12] = SCORE_MAX
    want = plan(copy.deepcopy(made), 3, came, np.vstack([scores, np.zeros((1, 7), np.uint16)]))
    found = made.adapt(ahead, came)
    assert found is not None
    assert (found.budget, found.tier) == (want.budget, want.tier)
    assert found.tokens == pytest.approx(want.tokens, rel=1e-12)


def test_the_margin_holds_beside_another_chunk():
    """A gain that the margin swallows verifies everything; without the margin the same batch is trimmed."""
    budgets = []
    for margin in (0.0, 0.9):
        rng = np.random.default_rng(4)
        made = planner(rng=rng, margin=margin)
        scores = np.full((13, 7), SCORE_MAX // 50, dtype=np.uint16)
        ahead = plan(made, 3, batch(12, 40), scores, ahead=True)
        found = made.adapt(ahead, batch(12, 17))
        budgets.append((found.budget, found.state))
    (trimmed, state), (everything, full) = budgets
    assert trimmed < everything == 84
    assert (state, full) == (PlanState.TRIMMING, PlanState.FULL)


def test_the_rows_of_a_logits_chunk_bound_what_is_found():
    made = planner(rows_limit=40)
    scores = np.full((13, 7), SCORE_MAX, dtype=np.uint16)
    ahead = plan(made, 3, batch(12, 40), scores, ahead=True)
    assert made.adapt(ahead, batch(12, 17)).budget <= 40 - 13


@pytest.mark.parametrize(
    ("why", "came"),
    [
        ("a crowd", batch(20, 17)),
        ("nobody with drafts", batch(0, 17)),
        ("past every priced size", batch(12, 2000)),
    ],
)
def test_what_cannot_be_foreseen_is_planned_anew(why, came):
    made = planner()
    scores = np.full((13, 7), SCORE_MAX // 2, dtype=np.uint16)
    ahead = plan(made, 3, batch(12, 40), scores, ahead=True)
    assert made.adapt(ahead, came) is None, why


def test_a_policy_of_somebody_elses_is_asked_itself():
    """Its rule is not known, so that nothing is chosen in its place."""

    class Smallest(RatioPolicy):
        def choose(self, candidates):
            return 0

    made = planner(Smallest)
    scores = np.full((13, 7), SCORE_MAX // 2, dtype=np.uint16)
    ahead = plan(made, 3, batch(12, 40), scores, ahead=True)
    assert made.adapt(ahead, batch(12, 17)) is None


def test_a_probe_that_is_not_run_is_not_charged():
    """The step is planned anew, and exploration has what it had."""
    made = planner(rng=np.random.default_rng(4), explore_share=0.5)
    scores = np.full((13, 7), SCORE_MAX // 50, dtype=np.uint16)
    for step in range(8):
        ahead = plan(made, step, batch(12, 40), scores, ahead=True)
        if ahead.probe is not None:
            break
    assert ahead.probe is not None
    exploration = made.decider._exploration
    before = exploration.credit
    assert made.adapt(ahead, batch(12, 17)) is None
    assert exploration.credit == pytest.approx(before + ahead.probe.charge)


def test_decode_steps_beside_changing_chunks_are_never_planned_on_the_spot(drive, monkeypatch):
    """Every step another chunk: after the first step the host looks through sizes and plans nothing."""
    made = drive()
    made.price(lambda tokens: 1.0 + 1.0 * tokens)
    names = ("a", "b", "c")
    made.add(*names)
    made.add("prompt", prompt=400, computed=0)
    spots = []
    planned = made.manager.planner.plan

    def seen(step, *rest, **more):
        spots.append(step)
        return planned(step, *rest, **more)

    monkeypatch.setattr(made.manager.planner, "plan", seen)
    for step, chunk in enumerate((16, 40, 7, 90, 33)):
        before = len(spots)
        made.step(dict.fromkeys(names, 7), [("prompt", chunk)])
        assert len(spots) == before + (step == 0)
        grown = {**dict.fromkeys(names, 1), "prompt": chunk}
        made.record(dict.fromkeys((*names, "prompt"), [0.7] * 7), grown)
