"""A table that is not this machine's any more: found while serving, named, left, and taken up again."""

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import PlanState
from adaverify_verification import CostModel
from adaverify_verification.cost_model import STRAY_STEPS

HALF = np.tile([0.9, 0.5, 0.3, 0.1, 0.1, 0.1, 0.1], (4, 1))


def steep(n):
    return 0.010 + 0.002 * n


def serve(loop, steps, factor):
    loop.seconds = lambda n: factor * steep(n)
    return [loop.serve(HALF) for _ in range(steps)]


@pytest.mark.parametrize("factor", [8.0, 1 / 8, 2.3])
def test_a_table_from_a_disturbed_machine_becomes_unpriced(build, factor, caplog):
    """vllm #52057: the start-up table drifts. 400 ms measured, 45 ms served, and a bounded refresh."""
    loop = build.loop(build.manager(build.table(steep, (4,), 64), online=True), steep)
    with caplog.at_level(logging.WARNING):
        plans = serve(loop, STRAY_STEPS + 20, factor)
    assert all(plan.state is not PlanState.UNPRICED for plan in plans[:STRAY_STEPS])
    assert {plan.state for plan in plans[STRAY_STEPS:]} == {PlanState.UNPRICED}
    last = plans[-1]
    assert last.reason == "measured step times left the table's bounds, profile again"
    assert (last.budget, last.uniform_query_len, last.predicted_seconds) == (28, 8, None)
    assert loop.manager.counters["table-left-bounds"] == 1
    assert loop.manager.counters["unpriced"] == 20
    assert "table-left-bounds" in loop.records[STRAY_STEPS - 1].fallbacks
    assert loop.records[-1].fallbacks == ("unpriced",)
    (said,) = caplog.messages
    assert said == f"mode adaptive: budgets are full: {last.reason}"


def test_a_table_that_agrees_again_is_used_again(build):
    """The disturbance ends: as many steps in favour as there were against, and trimming is back, counted."""
    loop = build.loop(build.manager(build.table(steep, (4,), 64), online=True), steep)
    serve(loop, STRAY_STEPS + 100, 8.0)
    plans = serve(loop, STRAY_STEPS, 1.0)
    assert {plan.state for plan in plans} == {PlanState.UNPRICED}
    serve(loop, 600, 1.0)
    assert loop.plans[-1].state is PlanState.TRIMMING
    assert loop.plans[-1].predicted_seconds == pytest.approx(steep(loop.plans[-1].tier), rel=0.05)
    assert loop.manager.counters["table-agrees-again"] == 1


def test_a_pause_or_a_bounded_drift_leaves_the_table_alone(build):
    """A stopped process, and a machine 1.9 times slower as a whole, which the refresh follows."""
    loop = build.loop(build.manager(build.table(steep, (4,), 64), online=True), steep)
    for _ in range(20):
        serve(loop, 20, 1.0)
        serve(loop, 15, 50.0)
    assert "table-left-bounds" not in loop.manager.counters
    drifted = build.loop(build.manager(build.table(steep, (4,), 64), online=True), steep)
    serve(drifted, 300, 1.9)
    assert "table-left-bounds" not in drifted.manager.counters
    assert drifted.plans[-1].predicted_seconds == pytest.approx(1.9 * steep(drifted.plans[-1].tier), rel=0.1)


def test_a_draft_price_above_the_whole_step_counts_against_the_table(build):
    """vllm #52362: drafting measured at 60 ms, whole steps of 45 ms served: the rest is below nothing."""
    table = build.table(steep, (4,), 64, draft=[(4, 0.060)])
    loop = build.loop(build.manager(table, online=True), steep)
    serve(loop, STRAY_STEPS + 1, 0.6)
    assert loop.plans[-1].state is PlanState.UNPRICED


def test_prices_that_were_asked_to_stay_are_judged_by_no_step_time(build):
    """Offline prices are equal on every rank; step times are not (vllm #54011)."""
    loop = build.loop(build.manager(build.table(steep, (4,), 64), online=False), steep)
    serve(loop, 3 * STRAY_STEPS, 8.0)
    assert PlanState.UNPRICED not in {plan.state for plan in loop.plans}


@given(st.lists(st.sampled_from([0.1, 0.4, 0.6, 1.0, 1.8, 2.5, 9.0]), max_size=150))
@settings(max_examples=60, deadline=None)
def test_the_state_follows_the_balance_of_steps(factors):
    """Out at 32 more steps outside [0.5, 2] than inside, back when all of them are made up for."""
    from adaverify_verification import CostTable, Fingerprint

    points = [(n, 4, 128, steep(n)) for n in range(1, 65)]
    model = CostModel(CostTable.from_points(Fingerprint.from_mapping({"device": "cpu"}), points))
    balance, strayed = 0, False
    for factor in factors:
        model.refresh(16, 4, 128, factor * steep(16))
        balance = min(STRAY_STEPS, balance + 1) if not 0.5 < factor < 2 else max(0, balance - 1)
        strayed = balance == STRAY_STEPS or (strayed and balance > 0)
        assert (model.strayed, model.priced) == (strayed, not strayed)
