"""Faults of planning and cost, as they broke in public; one test a kind of fault."""

import numpy as np
import torch

from adaverify_contracts import BudgetReads, PlanState, PolicyDescriptor
from adaverify_verification import CostTable, Fingerprint, RatioPolicy

HERE = Fingerprint.from_mapping({"device": "cpu"})


def plan_for(build, seconds, confidences, **more):
    """Plan one step of the given survivals under a cost curve."""
    requests = len(confidences)
    highest = max(256, requests * 8 + more.get("other_tokens", 0))
    options = more.pop("options", {})
    manager = build.manager(build.table(seconds, (requests,), highest), requests=requests, **options)
    return build.loop(manager, seconds).serve(confidences, **more)


def test_a_flat_table_verifies_everything_as_unpriced(build):
    """sglang #35413: cost equal at every size pins the argmax and looks active."""
    for level in (0.0, 0.5, 1.0):
        plan = plan_for(build, lambda n: 3.0, np.full((4, 7), level))
        assert plan.state is PlanState.UNPRICED
        assert plan.budget == 28
        assert "flat" in plan.reason
        assert plan.uniform_query_len == 8


def test_a_riser_is_climbed_only_when_the_gain_pays(build):
    """sglang #35413: cost [1, 1, 1, 5]; one request, three drafts."""
    table = CostTable.from_points(
        HERE, [(1, 1, 128, 1.0), (2, 1, 128, 1.0), (3, 1, 128, 1.0), (4, 1, 128, 5.0)]
    )
    manager = build.manager(table, tiers=(1, 2, 3, 4), requests=1, drafts=3)
    loop = build.loop(manager, lambda n: 5.0 if n > 3 else 1.0, drafts=3)
    plan = loop.serve(np.full((1, 3), 0.99))
    assert plan.budget == 2
    assert plan.tier == 3
    gentle = CostTable.from_points(HERE, [(1, 1, 128, 1.0), (3, 1, 128, 1.0), (4, 1, 128, 1.1)])
    manager = build.manager(gentle, tiers=(1, 2, 3, 4), requests=1, drafts=3)
    assert build.loop(manager, lambda n: 1.0, drafts=3).serve(np.full((1, 3), 0.99)).budget == 3


def test_a_gain_of_three_per_mille_is_noise(build):
    """sglang #35413: Theta(trimmed) = 1.003 x Theta(full)."""
    # 4 + 4 a against 4 + 8 a at survivals (1, 0.5): 8 / C and 10 / C; costs make the ratio 1.003.
    table = CostTable.from_points(HERE, [(4, 4, 128, 0.9), (8, 4, 128, 1.0), (12, 4, 128, 1.25 * 1.003)])
    manager = build.manager(table, tiers=(4, 8, 12), requests=4, drafts=2)
    plan = build.loop(manager, lambda n: 1.0, drafts=2).serve(np.tile([1.0, 0.5], (4, 1)))
    assert plan.state is PlanState.FULL
    assert plan.budget == 8
    assert "margin" in plan.reason


def test_rows_that_are_nearly_free_are_all_verified(build):
    """vllm #52362: cost 1.00 at 4 rows and 1.02 at 32; or 20 + 0.05 n. Trimming lost 5 to 8 %."""
    typical = np.tile([0.8, 0.7, 0.7, 0.6, 0.6, 0.5, 0.5], (4, 1))
    for seconds in (lambda n: 1.0 + 0.02 * (n - 4) / 28, lambda n: 20 + 0.05 * n):
        plan = plan_for(build, seconds, typical)
        assert plan.budget == 28
        assert plan.uniform_query_len == 8


def test_one_crossover_between_full_and_trimming(build):
    """sglang #36136: full verification at low load, trimming above; one table, requests 1 to 64."""
    kinds = []
    for requests in (1, 2, 4, 8, 16, 32, 64):
        plan = plan_for(
            build, lambda n: max(24.0, 0.4 * n), np.tile([0.8, 0.7, 0.6, 0.5, 0.4, 0.4, 0.3], (requests, 1))
        )
        kinds.append(plan.state is PlanState.TRIMMING)
    assert kinds == sorted(kinds)
    assert kinds[0] is False
    assert kinds[-1] is True


def test_the_budget_stays_within_one_logits_chunk(build):
    """vllm #47808: limit 16, 4 requests, K = 7: at most 12, so that one chunk suffices."""
    sure = np.full((4, 7), 0.999)
    for limit, most in ((16, 12), (5, 1), (4, 0), (1, 0), (400, 28)):
        plan = plan_for(build, lambda n: 20 + 0.05 * n, sure, chunk_limit=limit)
        assert plan.budget == most
        assert plan.scheduled == 28
        assert (plan.uniform_query_len == 8) is (most == 28)
    assert "logits chunk of 4 rows" in plan_for(build, lambda n: 20 + n, sure, chunk_limit=4).reason


def test_counts_come_from_the_drafts_really_scheduled(build):
    """vllm #48494, #48329: K = 1 chosen, 7 configured, gave a count of -5."""
    plan = plan_for(build, lambda n: 1 + n, np.full((4, 7), 1.0), scheduled=np.array([1, 0, 1, 0]))
    assert plan.scheduled == 2
    assert 0 <= plan.budget <= 2


def test_fixed_time_makes_the_budget_larger(build):
    """A fork of vllm: 42.6 ms real, 12 to 15 modelled, because the fixed part was left out."""
    steps = np.tile([0.9, 0.7, 0.5, 0.4, 0.3, 0.2, 0.1], (4, 1))
    whole = plan_for(build, lambda n: 30 + 0.5 * n, steps)
    forgot = plan_for(build, lambda n: 0.5 * n, steps)
    assert whole.budget > forgot.budget


def test_hopeless_drafts_on_rising_cost_are_not_verified(build):
    """tokenspeed #1132, vllm #49369: every survival 0; 200 requests with linear cost."""
    assert plan_for(build, lambda n: 1 + n, np.zeros((4, 7))).budget == 0
    plan = plan_for(build, lambda n: 1.0 * n, np.tile([0.7, 0.5, 0.5, 0.4, 0.4, 0.3, 0.3], (200, 1)))
    assert plan.budget == 0
    assert plan.state is PlanState.TRIMMING


def test_cost_that_grows_with_rejected_tokens_is_carried(build):
    """FreeToken #69: more tokens load more experts: 35.91 against 39.25 tok/s at 42 % acceptance; B = 0."""
    steps = np.full((1, 3), 0.42)
    points = [(n, 1, 128, 25.5 + 0.05 * n) for n in range(1, 5)]
    with_term = CostTable.from_points(HERE, points, rejected_seconds=40.0)
    budgets = [
        build.loop(build.manager(table, requests=1, drafts=3), lambda n: 25.5, drafts=3).serve(steps).budget
        for table in (CostTable.from_points(HERE, points), with_term)
    ]
    assert budgets == [3, 0]


def test_another_table_gives_another_answer(build):
    """recipes #967: one default K for all hardware loses 10.3 % on one GPU."""
    steps = np.tile([0.85, 0.6, 0.45, 0.35, 0.25, 0.2, 0.1], (8, 1))
    steep = plan_for(build, lambda n: 5 + 1.0 * n, steps)
    gentle = plan_for(build, lambda n: 50 + 0.02 * n, steps)
    assert steep.budget < gentle.budget == 56


def test_the_budget_belongs_to_the_batch(build):
    """EAGLE #298: at 8 requests the sum is spent where survivals are, not a fixed tree a request."""
    mixed = np.concatenate([np.full((4, 7), 0.95), np.full((4, 7), 0.05)])
    loop = build.loop(build.manager(build.table(lambda n: 4 + n, (8,), 64), requests=8), lambda n: 4 + n)
    plan = loop.serve(mixed)
    assert plan.budget <= 28
    assert loop.records[0].verified == plan.budget


def test_absurd_states_still_give_a_plan_within_bounds(build):
    """Nothing emits, a prefill for every other token, a context beyond every level, ragged drafts."""
    manager = build.manager(build.table(lambda n: 1 + n, (1, 16), 64), tiers=(8, 16))
    for step, more in enumerate(
        [
            {"emitting": 0},
            {"emitting": 104, "other_tokens": 100},
            {"kv_tokens": 10**12},
            {"other_tokens": 10**6},
            {"scheduled": np.array([7, 0, 3, 1])},
        ]
    ):
        plan = build.loop(manager, lambda n: 1.0, step=step).serve(np.full((4, 7), 0.5), **more)
        assert 0 <= plan.budget <= plan.scheduled
        assert plan.tier >= plan.tokens


def test_drafting_has_a_price_and_nothing_is_an_arm(build):
    """ds4 #621, transformers #36337: drafting costs 20 ms of 100, every survival 0; then all survive."""
    table = build.table(lambda n: 0.100 + 0.001 * n, (4,), 64, draft=[(4, 0.020)])
    manager = build.manager(table, requests=4, explore_share=0.01)
    loop = build.loop(manager, lambda n: 0.120 + 0.001 * n)
    drafted = 0
    for step in range(300):
        drafts, _ = manager.draft_next(4, 512)
        drafted += drafts
        scheduled = np.full(4, 7 if drafts else 0)
        survival = 0.0 if step < 150 else 0.95
        loop.serve(np.full((4, 7), survival), scheduled=scheduled)
        if step == 149:
            assert drafted < 15
            assert "drafting loses" in manager.draft_next(4, 512)[1]
            drafted = 0
    assert drafted > 100


def test_the_budget_is_spent_where_the_survivals_are(build):
    """EAGLE #298: a fixed tree of 32 nodes for each of 8 requests; here half of them get nearly all."""
    mixed = np.concatenate([np.full((4, 7), 0.95), np.full((4, 7), 0.05)])
    manager = build.manager(build.table(lambda n: 4 + n, (8,), 64), requests=8)
    manager.publish(0, np.arange(8), np.zeros(8, np.int64), build.logits(mixed))
    plan = manager.plan(build.state(0, 8))
    assert plan.budget >= 8
    drafts = torch.full((8,), 7, dtype=torch.int32)
    admitted = manager.assign(plan, drafts, drafts, plan.tokens).admitted
    assert int(admitted[:4].sum()) == min(28, plan.budget)


def test_load_context_and_accepted_length_are_inputs_of_every_policy(build):
    """sglang #9319, #1979; llama.cpp #11933: off under load or at long context, tuned by accepted length."""
    seen = []

    class Recorder(RatioPolicy):
        def choose(self, candidates):
            seen.append((float(candidates.seconds[-1] / candidates.seconds[0]), float(candidates.tokens[-1])))
            return super().choose(candidates)

    points = [
        (n, r, c, 10.0 + 0.02 * n * (1 + c / 1000) * (1 + r / 4))
        for r in (1, 64)
        for c in (100, 100_000)
        for n in (1, 8, 64, 512)
    ]
    policy = PolicyDescriptor("recorder", BudgetReads.HISTORY, Recorder)

    def share(requests, context, level):
        manager = build.manager(CostTable.from_points(HERE, points), requests=64, policy=policy)
        loop = build.loop(manager, lambda n: 10.0)
        plan = loop.serve(np.full((requests, 7), level), kv_tokens=requests * context)
        return plan.budget / plan.scheduled

    base = share(1, 100, 0.7)
    assert base == 1.0
    assert share(64, 100, 0.7) < base
    assert share(1, 100_000, 0.3) < share(1, 100, 0.3)
    assert share(64, 100, 0.95) > share(64, 100, 0.7)
    (alone, _), (loaded, _), *_ = seen
    assert loaded > alone


def test_drafting_stops_at_a_long_context_where_nothing_survives(build):
    """tokenspeed #1132: 131K context, accepted length 1.0, 28 to 41 % slower; it never gave up."""
    points = [(n, 1, c, 0.02 + c * n * 1e-6) for c in (1000, 131_072) for n in (1, 2, 4, 8)]
    table = CostTable.from_points(HERE, points, draft=[(1, 0.02)])
    manager = build.manager(table, requests=1)
    loop = build.loop(manager, lambda n: 0.04)
    for _ in range(8):
        drafts, _ = manager.draft_next(1, 131_072)
        plan = loop.serve(np.zeros((1, 7)), kv_tokens=131_072, scheduled=np.full(1, 7 * drafts))
        assert plan.budget == 0
    assert "drafting loses" in manager.draft_next(1, 131_072)[1]


def test_draft_time_is_in_the_objective(build):
    """ds4 #621: drafting is paid whatever is verified, so it argues for verifying more of it."""
    steps = np.tile([0.9, 0.7, 0.5, 0.4, 0.3, 0.2, 0.1], (4, 1))
    budgets = []
    for draft in ([], [(4, 20.0)]):
        table = build.table(lambda n: 10 + 0.5 * n, (4,), 64, draft=draft)
        plan = build.loop(build.manager(table, requests=4), lambda n: 10.0).serve(steps)
        budgets.append(plan.budget)
        assert plan.predicted_seconds == 10 + 0.5 * plan.tier + (20 if draft else 0)
    assert budgets[0] < budgets[1]
