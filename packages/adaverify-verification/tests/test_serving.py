"""Closed loops: never slower than verifying everything, damped, reversible, visible."""

from itertools import pairwise

import numpy as np
import pytest

from adaverify_contracts import BudgetReads, PlanState, PolicyDescriptor
from adaverify_verification import ACCEPTANCE_HISTORY, CALIBRATED, CostTable, Fingerprint
from adaverify_verification.policies import PricePolicy

# Measured on two cores, seconds by tokens.
CPU = [(1, 0.022), (2, 0.024), (8, 0.024), (16, 0.033), (32, 0.053), (64, 0.065), (128, 0.110)]


def cpu_seconds(tokens):
    return float(np.interp(tokens, *zip(*CPU, strict=True)))


def cpu_table():
    points = [(n, r, 128, s) for r in (1, 4, 16) for n, s in CPU]
    return CostTable.from_points(Fingerprint.from_mapping({"device": "cpu"}), points)


def bimodal(generator, requests):
    """A prompt-lookup drafter: 40 % of the drafts are near-certain copies, the rest coincidences."""
    copies = generator.random((requests, 1)) < 0.4
    return np.where(copies, 0.95, 0.15) * np.ones((requests, 7))


def serve(build, requests, steps, mode, confidences=bimodal, **options):
    manager = build.manager(cpu_table(), mode=mode, explore_share=0.01, **options)
    loop = build.loop(manager, cpu_seconds)
    generator = np.random.default_rng(11)
    for _ in range(steps):
        loop.serve(confidences(generator, requests))
    return loop


@pytest.mark.parametrize("policy", ["ratio", "price"])
def test_budgets_follow_bimodal_survivals_step_by_step(build, policy):
    """Deterministic n-gram drafts at lag 0: adaptive beats full, nothing and every uniform length."""
    more = {}
    if policy == "price":
        more["policy"] = PolicyDescriptor("price", BudgetReads.HISTORY, PricePolicy)
    rates = {mode: serve(build, 16, 150, mode, **more).rate for mode in ("none", "fixed", "adaptive")}
    assert rates["adaptive"] > 1.25 * rates["fixed"]
    assert rates["adaptive"] > 1.1 * rates["none"]
    loop = serve(build, 16, 150, "adaptive", **more)
    assert len({plan.budget for plan in loop.plans}) >= 8
    # The best one length for all requests, known in hindsight.
    kept = [16 * (1 + sum(0.4 * 0.95**k + 0.6 * 0.15**k for k in range(1, n + 1))) for n in range(8)]
    assert loop.rate > 1.05 * max(tokens / cpu_seconds(16 * (n + 1)) for n, tokens in enumerate(kept))


def test_the_live_choice_equals_the_hindsight_optimum(build):
    """With survivals known at lag 0 nothing is lost to the guard: regret below half a percent."""
    generator = np.random.default_rng(4)
    loop = build.loop(build.manager(cpu_table()), cpu_seconds)
    chosen = best = 0.0
    for _ in range(80):
        confidences = bimodal(generator, 16)
        plan = loop.serve(confidences)
        survivals = np.concatenate([[0.0], np.sort(np.cumprod(confidences, axis=1).ravel())[::-1]]).cumsum()
        theta = [(16 + survivals[n]) / cpu_seconds(16 + n) for n in range(113)]
        chosen += theta[plan.budget]
        best += max(theta)
    assert chosen > 0.995 * best


def test_concurrency_one_costs_nothing(build):
    """vllm PR 52795 lost 6.35 % at concurrency 1: here 1 to 8 tokens cost nearly the same; at least 0.995."""
    fixed, adaptive = (serve(build, 1, 400, mode) for mode in ("fixed", "adaptive"))
    assert adaptive.rate >= 0.995 * fixed.rate


def test_a_table_that_does_not_hold_cannot_make_trimming_lose(build):
    """The table says steep, the machine is flat: prices are refreshed and trimming stops."""
    points = [(n, 16, 128, 1 + 0.05 * n) for n in (16, 32, 64, 128)]
    table = CostTable.from_points(Fingerprint.from_mapping({"device": "cpu"}), points)
    manager = build.manager(table, online=True, explore_share=0.01)
    loop = build.loop(manager, lambda n: 4.0 + 0.001 * n)
    for _ in range(500):
        loop.serve(np.full((16, 7), 0.6))
    late = loop.plans[-100:]
    assert sum(plan.budget for plan in late) / 100 > 0.8 * 112


def test_over_confident_scores_do_not_make_trimming_lose(build):
    """The signal promises 0.9, half of it comes true: too much is verified, never less than pays."""
    rates = {}
    for mode in ("fixed", "adaptive"):
        loop = build.loop(build.manager(cpu_table(), mode=mode), cpu_seconds)
        for _ in range(200):
            loop.serve(np.full((16, 7), 0.9), truth=np.full((16, 7), 0.45))
        rates[mode] = loop.rate
    assert rates["adaptive"] >= 0.98 * rates["fixed"]


def test_acceptance_that_recovers_is_found_again(build):
    """TensorRT-LLM: 50 rounds of acceptance 0.1, then 0.9; history alone cannot know without probes."""
    manager = build.manager(
        build.table(lambda n: 1 + 0.5 * n, (4,), 64), signal=ACCEPTANCE_HISTORY, explore_share=0.02
    )
    loop = build.loop(manager, lambda n: 1 + 0.5 * n)
    flat = np.full((4, 7), 0.5)
    for _ in range(150):
        loop.serve(flat, truth=np.full((4, 7), 0.05))
    assert sum(plan.budget == 0 for plan in loop.plans[-20:]) >= 18
    for _ in range(400):
        loop.serve(flat, truth=np.full((4, 7), 0.99))
    assert sum(plan.budget > 0 for plan in loop.plans[-50:]) >= 45
    assert any("exploring" in plan.reason for plan in loop.plans)


def test_a_probe_beside_a_prompt_is_not_judged_by_its_time(build):
    """Such steps took half of what was priced, so that every probe seemed to pay, and the next followed."""
    table = build.table(lambda n: 1 + 0.1 * n, (16,), 256)
    loop = build.loop(build.manager(table, explore_share=0.01), lambda n: 0.5 * (1 + 0.1 * n))
    for _ in range(200):
        loop.serve(np.full((16, 7), 0.5), other_tokens=64)
    probes = [plan for plan in loop.plans if "exploring" in plan.reason]
    # 1 % of the time at a tenth of a step each, at least.
    assert 0 < len(probes) <= 20


def test_the_calibrated_signal_recovers_from_a_shifted_head(build):
    """Default signal end to end: useless intercepts are learnt in warm-up, trimming then pays."""
    rates = {}
    for mode in ("fixed", "adaptive"):
        loop = build.loop(
            build.manager(cpu_table(), mode=mode, signal=CALIBRATED, warmup_steps=40, explore_share=0.01),
            cpu_seconds,
        )
        generator = np.random.default_rng(11)
        for _ in range(250):
            truth = bimodal(generator, 16)
            shifted = 1 / (1 + np.exp(-(np.log(truth / (1 - truth)) + 2.0)))
            loop.serve(shifted, truth=truth)
        rates[mode] = loop.rate
    assert loop.plans[0].state is PlanState.WARMING
    assert loop.plans[-1].state is not PlanState.WARMING
    assert rates["adaptive"] > 1.15 * rates["fixed"]


def test_load_that_moves_around_a_threshold_does_not_swing_the_plan(build):
    """vllm #49548: load between 4 and 5 requests, gains around the margin."""
    loop = build.loop(build.manager(build.table(lambda n: 8 + 0.1 * n, (1, 16), 128)), lambda n: 8 + 0.1 * n)
    steps = np.tile([0.8, 0.55, 0.5, 0.3, 0.1, 0.1, 0.1], (5, 1))
    kinds = [loop.serve(steps[: 4 + step % 2]).state for step in range(40)]
    assert sum(first != second for first, second in pairwise(kinds[2:])) == 0


def test_load_drains_to_zero_and_returns(build):
    """Low load, the drain and the return are ordinary steps; nothing lingers."""
    loop = build.loop(build.manager(cpu_table(), explore_share=0.01), cpu_seconds)
    generator = np.random.default_rng(8)
    for requests in [16, 9, 4, 2, 1, 0, 0, 1, 7, 16]:
        loop.serve(bimodal(generator, requests))
    assert [plan.requests for plan in loop.plans] == [16, 9, 4, 2, 1, 0, 0, 1, 7, 16]
    assert not loop.manager.counters


def test_every_record_explains_itself(build):
    """vllm #51303, AdaFlash #2: planned, executed, predicted, realised and a reason in each step."""
    loop = serve(build, 16, 30, "adaptive")
    for record in loop.records:
        assert record.reason
        assert record.state in {state.value for state in PlanState}
        assert record.predicted_seconds == pytest.approx(record.realised_seconds)
        assert record.planned == record.verified
        assert record.realised_tokens == record.emitted
        assert record.lag == 0
        assert record.as_dict()["fallbacks"] == ()


def test_exploration_costs_about_its_share(build):
    """Against the same loop without it: at most 2 % at a share of 1 %."""
    steps = 300
    generator = np.random.default_rng(0)
    loops = [
        build.loop(build.manager(cpu_table(), explore_share=share), cpu_seconds) for share in (0.0, 0.01)
    ]
    for _ in range(steps):
        confidences = bimodal(generator, 16)
        for loop in loops:
            loop.serve(confidences)
    assert any("exploring" in plan.reason for plan in loops[1].plans)
    assert loops[1].rate > 0.98 * loops[0].rate
