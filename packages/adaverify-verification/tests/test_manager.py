"""The manager's contract: states, modes, records, lossless rule, alignment."""

import logging

import numpy as np
import pytest
import torch

from adaverify_contracts import (
    BudgetReads,
    ClosedError,
    DescriptorError,
    LayoutError,
    PlanError,
    PlanState,
    PolicyDescriptor,
    Seen,
    StepOutcome,
)
from adaverify_verification import CALIBRATED, CostTable, Fingerprint, ManagerOptions, RatioPolicy
from adaverify_verification.policies import PricePolicy


def steep(n):
    return 1.0 + 0.2 * n


HALF = np.tile([0.9, 0.5, 0.3, 0.1, 0.1, 0.1, 0.1], (4, 1))


def test_trimming_says_what_it_does_and_why(build):
    """State, reason, prediction against full verification, lag 0 for a deterministic drafter."""
    loop = build.loop(build.manager(build.table(steep, (1, 16), 128)), steep)
    plan = loop.serve(HALF)
    assert plan.state is PlanState.TRIMMING
    assert 0 < plan.budget < plan.scheduled == 28
    assert plan.lag == 0
    assert plan.tier == plan.tokens == 4 + plan.budget
    assert plan.predicted_tokens / plan.predicted_seconds > 1.02 * plan.full_tokens / plan.full_seconds
    record = loop.records[0]
    assert (record.planned, record.verified, record.fallbacks) == (plan.budget, plan.budget, ())
    assert record.digest == f"{plan.digest:016x}"
    assert record.state == "trimming"
    assert "margin" in record.reason


def test_the_choice_is_the_exhaustive_optimum(build):
    """The whole path, scores to budget, against a search written out in plain Python."""
    generator = np.random.default_rng(1)
    manager = build.manager(build.table(steep, (1, 16), 128), margin=0.0)
    for step in range(20):
        confidences = generator.random((5, 7)) ** 0.5
        loop = build.loop(manager, steep, step=step)
        plan = loop.serve(confidences)
        survivals = np.sort(np.cumprod(confidences, axis=1).ravel())[::-1]
        theta = [(5 + survivals[:n].sum()) / steep(5 + n) for n in range(36)]
        assert theta[plan.budget] == pytest.approx(max(theta), rel=1e-4)


@pytest.mark.parametrize(
    ("mode", "budget", "kind"), [("none", 0, PlanState.IDLE), ("fixed", 28, PlanState.FULL)]
)
def test_modes_share_everything_but_the_plan(build, mode, budget, kind):
    """None verifies nothing, fixed everything; the reason names the mode."""
    loop = build.loop(build.manager(build.table(steep, (1, 16), 128), mode=mode), steep)
    plan = loop.serve(HALF)
    assert (plan.budget, plan.state) == (budget, kind)
    assert f"mode is {mode}" in plan.reason
    assert loop.records[0].verified == budget
    assert plan.uniform_query_len == (1 if mode == "none" else 8)


def test_no_table_verifies_everything_and_says_so(build, caplog):
    """Said once in the log, reported in every record."""
    with caplog.at_level(logging.WARNING):
        loop = build.loop(build.manager(None), steep)
        plans = [loop.serve(HALF) for _ in range(3)]
    assert [p.state for p in plans] == [PlanState.UNPRICED] * 3
    assert plans[0].budget == 28
    assert plans[0].predicted_seconds is None
    assert "no cost table" in loop.records[2].reason
    assert loop.records[2].fallbacks == ("unpriced",)
    assert loop.manager.counters["unpriced"] == 3
    assert len(caplog.records) == 1


@pytest.mark.parametrize("requests", [0, 1, 2, 16])
def test_every_batch_size_is_ordinary(build, requests):
    """R = 0 gives budget 0 without a division (M19), R = 1 a uniform query."""
    loop = build.loop(build.manager(build.table(steep, (1, 16), 128)), steep)
    plan = loop.serve(np.full((requests, 7), 0.6))
    assert 0 <= plan.budget <= 7 * requests
    if requests == 0:
        assert plan.state is PlanState.IDLE
        assert plan.reason == "no decode requests"
        assert plan.tokens == 0
    if requests == 1:
        assert plan.uniform_query_len == plan.budget + 1


def test_no_scheduled_drafts_is_idle(build):
    """A batch of first steps."""
    loop = build.loop(build.manager(build.table(steep, (1, 16), 128)), steep)
    plan = loop.serve(HALF, scheduled=np.zeros(4, dtype=np.int64))
    assert plan.state is PlanState.IDLE
    assert plan.reason == "no drafts were scheduled"
    assert plan.uniform_query_len == 1


def test_warming_verifies_everything_and_is_bounded(build):
    """A signal whose labels never come does not hold trimming off for ever."""
    table = build.table(steep, (1, 16), 128)
    loop = build.loop(build.manager(table, signal=CALIBRATED, warmup_steps=5), steep)
    plans = [loop.serve(np.full((1, 7), 0.5), truth=np.zeros((1, 7))) for _ in range(6)]
    assert [plan.state for plan in plans[:5]] == [PlanState.WARMING] * 5
    assert all(plan.budget == 7 for plan in plans[:5])
    assert "step 1 of at most 5" in plans[0].reason
    assert plans[5].state is not PlanState.WARMING


def test_a_signal_that_is_ready_ends_warming_early(build):
    """Four requests at full verification fill the counts long before the bound."""
    loop = build.loop(
        build.manager(build.table(steep, (1, 16), 128), signal=CALIBRATED, warmup_steps=10**6), steep
    )
    for _ in range(400):
        plan = loop.serve(np.full((16, 7), 0.75))
        if plan.state is not PlanState.WARMING:
            break
    assert loop.step < 400


def test_a_recycled_slot_never_reads_its_predecessor(build):
    """vllm #47930: another generation is an unknown request, survival 1; K is verified again."""
    table = build.table(steep, (1, 16), 128)
    manager = build.manager(table, deterministic=False)
    loop = build.loop(manager, steep)
    loop.serve(np.full((2, 7), 0.05), sampled=True)
    assert loop.serve(np.full((2, 7), 0.05), sampled=True).budget == 0
    fresh = loop.serve(np.full((2, 7), 0.05), generations=np.array([1, 1]), sampled=True)
    assert fresh.budget == 14
    assert fresh.predicted_tokens == 16.0


def test_confidences_follow_their_requests_when_rows_move(build):
    """Slots published in another order, one of them gone, one of them new."""
    manager = build.manager(build.table(steep, (1, 16), 128), drafts=2)
    scores = build.logits([[0.9, 0.9], [0.1, 0.1], [0.5, 0.5]])
    manager.publish(0, np.array([3, 5, 9]), np.zeros(3, np.int64), scores)
    state = build.state(0, 3, 2, slots=np.array([5, 4, 3]))
    plan = manager.plan(state)
    manager.agree(state, plan, [plan.digest])
    full = torch.full((3,), 2, dtype=torch.int32)
    budget = plan.__class__(
        **{**{n: getattr(plan, n) for n in plan.__dataclass_fields__}, "budget": 4, "tokens": 7, "tier": 7}
    )
    assignment = manager.assign(budget, full, full, 7)
    # Slot 4 published nothing: optimistic. Slot 3 comes next, slot 5 last.
    assert assignment.admitted.tolist() == [0, 2, 2]
    assert manager.counters["unranked-requests"] == 1


def test_a_step_that_published_nothing_is_ranked_optimistically_and_counted(build):
    """Confidences of other drafts must not rank these."""
    manager = build.manager(build.table(steep, (1, 16), 128))
    manager.publish(0, np.arange(4), np.zeros(4, np.int64), build.logits(HALF))
    plan = manager.plan(build.state(1, 4))
    assert 0 < plan.budget < 28
    assert plan.lag == 1
    lens = torch.full((4,), 7, dtype=torch.int32)
    admitted = manager.assign(plan, lens, lens, plan.tokens).admitted
    assert int(admitted.sum()) == plan.budget
    assert int(admitted.max() - admitted.min()) <= 1
    assert manager.counters["unranked-requests"] == 1


def test_confidences_that_are_no_number_count_as_zero_and_are_named(build):
    """vllm #54011: no NaN reaches a plan."""
    manager = build.manager(build.table(steep, (1, 16), 128), seen=Seen.HISTORY)
    relay = manager._relay
    bad = torch.tensor([[float("nan")] * 7, [0.9] * 7])
    relay.publish(0, np.arange(2), np.zeros(2, np.int64), bad)
    plan = manager.plan(build.state(0, 2))
    assert np.isfinite(plan.full_tokens)
    assert plan.full_tokens < 2 + 7
    assert manager.counters["invalid-confidences"] == 1


@pytest.mark.parametrize(
    "changes",
    [{"requests": 17}, {"requests": 2, "scheduled": np.array([8, 1])}],
)
def test_a_step_past_the_limits_is_refused(build, changes):
    """vllm #48494: counts come from the K in force; the error names both."""
    manager = build.manager(build.table(steep, (1, 16), 128))
    with pytest.raises(PlanError, match="does not fit the limits"):
        manager.plan(build.state(0, **changes))


def test_scores_of_another_width_are_refused(build):
    """One draft width for all requests."""
    manager = build.manager(build.table(steep, (1, 16), 128))
    with pytest.raises(LayoutError):
        manager.publish(0, np.arange(2), np.zeros(2, np.int64), torch.zeros(2, 6))
    with pytest.raises(LayoutError):
        manager.publish(0, np.arange(2), np.zeros(2, np.int64), torch.zeros(3, 7))


def test_assigning_a_plan_that_is_not_open_is_refused(build):
    """Plan, assign, observe, once each."""
    manager = build.manager(build.table(steep, (1, 16), 128))
    loop = build.loop(manager, steep)
    plan = loop.serve(HALF)
    lens = torch.full((4,), 7, dtype=torch.int32)
    with pytest.raises(PlanError, match="not open"):
        manager.assign(plan, lens, lens, plan.tokens)


def test_unsorted_tiers_are_refused(build):
    """Tiers rise."""
    for tiers in ((16, 8), (8, 8), (0, 8)):
        with pytest.raises(PlanError, match="tiers"):
            build.manager(build.table(steep, (1, 16), 128), tiers=tiers)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "sometimes"},
        {"lossless": "hope"},
        {"margin": -0.1},
        {"margin": float("nan")},
        {"explore_share": 0.6},
        {"warmup_steps": -1},
        {"warmup_steps": True},
        {"hysteresis": "much"},
    ],
)
def test_options_check_themselves(options):
    """What arrived, what is allowed."""
    with pytest.raises(DescriptorError, match="ManagerOptions"):
        ManagerOptions(**options)


def test_policies_are_ordinary_plugins(build):
    """A policy that knows nothing of gains is judged by the ratio; a frontier policy is left unguarded."""

    class Half:
        def choose(self, candidates):
            return len(candidates.budgets) // 2

    table = build.table(steep, (1, 16), 128)
    guarded = build.manager(table, policy=PolicyDescriptor("half", BudgetReads.HISTORY, Half))
    assert build.loop(guarded, steep).serve(np.full((4, 7), 0.999)).budget == 28
    frontier = build.manager(
        table, policy=PolicyDescriptor("half", BudgetReads.FRONTIER, Half), deterministic=False
    )
    plan = build.loop(frontier, steep).serve(np.full((4, 7), 0.999), sampled=True)
    assert plan.budget == 14
    assert "frontier" in plan.reason
    assert plan.lag == 0
    price = build.manager(table, policy=PolicyDescriptor("price", BudgetReads.HISTORY, PricePolicy))
    loop = build.loop(price, steep)
    assert all(loop.serve(HALF).budget < 28 for _ in range(5))


def test_a_frontier_policy_is_shown_every_budget_and_its_tier_is_filled(build):
    """A tier's end alone would tell of survivals behind the frontier; padding is filled after the choice."""
    shown = []

    class Third:
        def choose(self, candidates):
            shown.append(candidates.budgets.tolist())
            return 3

    manager = build.manager(
        build.table(steep, (1, 16), 128),
        tiers=(4, 6, 10, 32),
        policy=PolicyDescriptor("third", BudgetReads.FRONTIER, Third),
        deterministic=False,
    )
    loop = build.loop(manager, steep)
    plan = loop.serve(HALF, sampled=True)
    assert shown == [list(range(29))]
    assert (plan.budget, plan.tier) == (6, 10)
    greedy = loop.serve(HALF)
    assert shown[1] == [0, 2, 6, 28]
    assert greedy.lag == 0


def test_the_hooks_register_the_built_ins():
    """Names are unique and the defaults are there."""
    from adaverify_verification import hooks

    signals = [s.name for s in hooks.adaverify_register_signals()]
    assert sorted(signals) == [
        "acceptance-history",
        "calibrated",
        "drafter",
        "optimistic",
        "temperature-scaled",
    ]
    policies = {p.name: p for p in hooks.adaverify_register_policies()}
    assert sorted(policies) == ["price", "ratio"]
    assert isinstance(policies["ratio"].factory(), RatioPolicy)
    assert all(p.reads is BudgetReads.HISTORY for p in policies.values())


def test_closing_releases_the_relay(build):
    """Nothing is published, planned or assigned afterwards; an outcome under way is still taken, once."""
    manager = build.manager(build.table(steep, (1, 16), 128))
    loop = build.loop(manager, steep)
    loop.serve(HALF)
    state = build.state(9, 4)
    plan = manager.plan(state)
    counts = torch.full((4,), 7, dtype=torch.int32)
    manager.close()
    manager.close()
    for call in (
        lambda: manager.publish(10, state.slots, state.generations, build.logits(HALF)),
        lambda: manager.plan(state),
        lambda: manager.assign(plan, counts, counts, plan.tokens),
        lambda: manager.apply(state, manager.export(plan)),
        lambda: manager.agree(state, plan, [1]),
        lambda: manager.begin_publish(10, state.slots, state.generations),
        lambda: manager.assign_captured(4, 8, counts, counts, counts[:1]),
    ):
        with pytest.raises(ClosedError, match="used after close") as caught:
            call()
        assert caught.value.remedy
    admitted = np.full(4, plan.budget // 4)
    admitted[: plan.budget % 4] += 1
    zeros = np.zeros(4, dtype=np.int64)
    false = np.zeros(4, dtype=bool)
    outcome = StepOutcome(
        9,
        state.slots,
        state.generations,
        state.scheduled,
        admitted,
        zeros,
        np.zeros((4, 7), dtype=np.float32),
        false,
        false,
        4,
        None,
    )
    assert manager.observe(outcome, plan, "x").fallbacks == ()
    with pytest.raises(ClosedError):
        manager.observe(outcome, plan, "x")


def test_a_one_point_table_is_flat():
    """It cannot tell two budgets apart."""
    from adaverify_verification import CostModel

    table = CostTable.from_points(Fingerprint.from_mapping({"a": 1}), [(8, 1, 0, 1.0)])
    assert not CostModel(table).priced
