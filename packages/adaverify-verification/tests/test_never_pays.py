"""A table that says trimming never pays: steps that are served can say otherwise."""

import numpy as np
import pytest

from adaverify_contracts import PlanState
from adaverify_verification import CostModel, CostTable, Fingerprint
from adaverify_verification.cost_model import REBASE_STEPS, STRAY_STEPS, YOUNG
from adaverify_verification.decision import UNTRIED

HERE = Fingerprint.from_mapping({"device": "cpu"})
# Most drafts hardly ever survive: verifying some four of seven is worth most where tokens cost.
POOR = np.tile([0.9, 0.8, 0.6, 0.2, 0.05, 0.05, 0.05], (16, 1))


def steep(n):
    return 0.020 + 0.001 * n


def flat_table(seconds, **more):
    points = [(n, 16, 128, seconds) for n in (16, 32, 64, 96, 128)]
    return CostTable.from_points(HERE, points, **more)


# Each token is worth verifying at the table's prices, and half of them at the machine's.
FAIR = np.tile([0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6], (16, 1))


def served(build, table, steps, seconds=steep, confidences=POOR, **options):
    manager = build.manager(table, online=True, **{"explore_share": 0.02, **options})
    loop = build.loop(manager, seconds)
    for _ in range(steps):
        loop.serve(confidences)
    return loop


def test_a_flat_table_is_contradicted_by_what_is_served(build):
    """Measured beside a steady neighbour: every size 0.1 s. Adaptive was off for good."""
    loop = served(build, flat_table(0.1), 900)
    assert loop.plans[0].state is PlanState.UNPRICED
    assert any("the table's word alone" in plan.reason for plan in loop.plans)
    late = loop.plans[-100:]
    assert sum(plan.state is PlanState.TRIMMING for plan in late) > 80
    assert "the cost table is flat, and served steps are" in loop.manager.cost.reason


def test_a_table_forty_times_too_slow_is_brought_down_and_trims(build):
    """1.2 s for everything where steps take 36 to 148 ms, drafting as wrong as the rest."""
    loop = served(build, flat_table(1.2, draft=[(16, 0.4)]), 2000, seconds=lambda n: 0.010 + steep(n))
    counters = loop.manager.counters
    assert counters["table-left-bounds"] >= 1
    assert counters["table-agrees-again"] >= 1
    late = loop.plans[-200:]
    assert sum(plan.state is PlanState.TRIMMING for plan in late) > 150
    assert loop.manager.cost.draft_seconds(16) < 0.05


def test_a_table_that_is_nearly_flat_is_tried_a_few_times_and_then_trims(build):
    """Its promise of no gain is the table's word alone until a smaller size was served."""
    # Everything takes what the table says, so that full steps teach nothing; half of it takes far less.
    points = [(n, 16, 128, steep(128) - 0.0001 * (128 - n)) for n in (16, 32, 64, 96, 128)]
    table = CostTable.from_points(HERE, points)
    loop = served(build, table, 900, confidences=FAIR)
    assert loop.plans[0].state is PlanState.FULL
    assert any(plan.reason == UNTRIED for plan in loop.plans)
    assert sum(plan.state is PlanState.TRIMMING for plan in loop.plans[-100:]) > 80


def test_a_machine_that_is_flat_is_tried_a_few_times_and_left_alone(build):
    """Exploration ends with the visits that settle it, and costs less than its share."""
    fixed = served(build, flat_table(0.1), 1200, seconds=lambda n: 0.1, mode="fixed")
    loop = served(build, flat_table(0.1), 1200, seconds=lambda n: 0.1)
    tried = [plan.step for plan in loop.plans if plan.budget < plan.scheduled]
    assert 0 < len(tried) <= 2 * YOUNG
    assert loop.rate > 0.98 * fixed.rate
    assert all(plan.state is PlanState.UNPRICED for plan in loop.plans if plan.budget == plan.scheduled)


@pytest.mark.parametrize("options", [{"explore_share": 0.0}, {"online": False}])
def test_who_refuses_exploration_or_refresh_is_left_alone(build, options):
    """Offline prices are equal on every rank, and stay."""
    manager = build.manager(flat_table(0.1), **{"explore_share": 0.02, "online": True, **options})
    loop = build.loop(manager, steep)
    for _ in range(300):
        loop.serve(POOR)
    assert {plan.budget for plan in loop.plans} == {112}


def test_steps_that_are_slower_do_not_move_the_table_for_good():
    """A busy hour is no reason: only what makes steps faster than the table speaks against the table."""
    model = CostModel(CostTable.from_points(HERE, [(n, 16, 128, steep(n)) for n in (16, 64, 128)]))
    for _ in range(STRAY_STEPS + 10 * REBASE_STEPS):
        model.refresh(128, 16, 128, 10 * steep(128))
    assert model.strayed


def test_a_rebased_table_has_the_level_of_the_steps_and_corrections_start_anew():
    """The median of the steps that were faster, and wider bounds: its shape is a guess."""
    model = CostModel(CostTable.from_points(HERE, [(n, 16, 128, steep(n)) for n in (16, 64, 128)]))
    for _ in range(STRAY_STEPS + REBASE_STEPS - 1):
        model.refresh(128, 16, 128, steep(128) / 40)
    assert not model.strayed
    assert float(model.seconds(128, 16, 128)) == pytest.approx(steep(128) / 40)
    assert float(model.seconds(16, 16, 128)) == pytest.approx(steep(16) / 40)
    for _ in range(60):
        model.refresh(16, 16, 128, steep(16) / 200)
    assert not model.strayed
    assert float(model.seconds(16, 16, 128)) == pytest.approx(steep(16) / 200, rel=0.2)
