"""What the manager learns from a finished step, and what it counts in place of learning."""

import numpy as np
import pytest

from adaverify_contracts import (
    StepOutcome,
)


def steep(n):
    return 1.0 + 0.2 * n


HALF = np.tile([0.9, 0.5, 0.3, 0.1, 0.1, 0.1, 0.1], (4, 1))


def outcome(step, admitted, drafted=7, **more):
    admitted = np.array(admitted)
    facts = {
        "slots": np.arange(len(admitted)),
        "generations": np.zeros(len(admitted), np.int64),
        "drafted": np.full(len(admitted), drafted),
        "admitted": admitted,
        "accepted": np.zeros(len(admitted), np.int64),
        "scores": np.zeros((len(admitted), 7), np.float32),
        "learn": np.ones(len(admitted), bool),
        "sampled": np.zeros(len(admitted), bool),
        "emitted": len(admitted),
        "seconds": 9.0,
        **more,
    }
    return StepOutcome(step=step, **facts)


def test_a_plan_that_was_not_executed_is_an_error_count_and_teaches_nothing(build):
    """sglang #30204: planned 2, verified 7; vllm #51510: plan 0, drafted 2."""
    manager = build.manager(build.table(steep, (1, 16), 128), online=True)
    manager.publish(0, np.arange(2), np.zeros(2, np.int64), build.logits(HALF[:2]))
    plan = manager.plan(build.state(0, 2))
    before = float(manager.cost.seconds(np.array([plan.tokens]), 2, 128)[0])
    record = manager.observe(outcome(0, [7, 7]), plan, "reference")
    assert (record.planned, record.verified) == (
        plan.budget,
        14,
    )
    assert "verified-not-planned" in record.fallbacks
    assert manager.counters["verified-not-planned"] == 1
    assert manager.margin == 0.02
    assert float(manager.cost.seconds(np.array([plan.tokens]), 2, 128)[0]) == before
    idle = manager.plan(build.state(1, 2, scheduled=np.zeros(2, np.int64)))
    record = manager.observe(outcome(1, [0, 0], drafted=2), idle, "reference")
    assert record.fallbacks == ("drafted-not-scheduled",)


def test_an_outcome_of_another_step_is_not_credited(build):
    """No measurement is credited to a plan that did not cause it."""
    manager = build.manager(build.table(steep, (1, 16), 128), online=True)
    plan = manager.plan(build.state(4, 2))
    record = manager.observe(outcome(3, [7, 7]), plan, "reference")
    assert "outcome-of-another-step" in record.fallbacks
    assert record.step == 4
    assert float(manager.cost.seconds(np.array([16]), 2, 128)[0]) == pytest.approx(steep(16))


def test_served_times_refresh_the_prices_of_the_size_that_ran(build):
    """Predicted and realised meet, and the margin narrows again."""
    loop = build.loop(
        build.manager(build.table(steep, (1, 16), 128), online=True, mode="fixed"), lambda n: 1.5 * steep(n)
    )
    for _ in range(300):
        plan = loop.serve(HALF)
    assert plan.predicted_seconds == pytest.approx(1.5 * steep(32), rel=0.02)


def test_prefill_steps_cost_do_not_gain_and_are_not_credited(build):
    """Other tokens raise T; tiers hold no prefill chunk; their time says nothing about decode prices."""
    manager = build.manager(build.table(steep, (1, 16), 256), tiers=(8, 16, 32, 64, 128), online=True)
    loop = build.loop(manager, lambda n: 50.0)
    plan = loop.serve(HALF, other_tokens=100, emitting=4)
    assert plan.certain_tokens == 104
    assert plan.tier == plan.tokens == 104 + plan.budget
    assert float(manager.cost.seconds(np.array([64]), 4, 128)[0]) == pytest.approx(steep(64))
    assert plan.predicted_tokens <= 4 + 28


def test_mixed_batches_use_the_tiers_where_the_engine_pads_them(build):
    """Piecewise graphs hold prefill chunks too: T > R, tier ends are the candidates."""
    manager = build.manager(build.table(steep, (1, 16), 256), tiers=(8, 16, 32, 64, 128), mixed_tiers=True)
    plan = build.loop(manager, steep).serve(HALF, other_tokens=20, emitting=4)
    assert plan.tier in (32, 64)
    assert plan.budget in (8, 28)
