"""A host that is slower than the device: every budget takes what the host needs."""

import numpy as np
import pytest

from adaverify_contracts import PlanState
from adaverify_verification import CostModel, CostTable
from adaverify_verification.host_floor import HostFloor, host_bound

# Verifying some four of seven is worth most where tokens cost.
POOR = np.tile([0.9, 0.8, 0.6, 0.2, 0.05, 0.05, 0.05], (16, 1))


def device(n):
    return 0.002 + 0.0001 * n


def served(loop, steps):
    first = len(loop.plans)
    for _ in range(steps):
        loop.serve(POOR)
    return loop.plans[first:]


def test_sizes_that_were_never_served_have_no_floor():
    """Nothing is known of them; sizes up to a factor of two apart share what a request takes."""
    floor = HostFloor()
    assert floor.seconds(16) == 0.0
    floor.learn(16, 0.032)
    assert floor.seconds(16) == pytest.approx(0.032)
    assert floor.seconds(24) == pytest.approx(0.048)
    assert floor.seconds(15) == floor.seconds(32) == 0.0


def test_a_pause_is_not_taken_for_work():
    """A process that was stopped for ten seconds comes back."""
    floor = HostFloor()
    floor.learn(16, 0.032)
    floor.learn(16, 10.0)
    assert floor.seconds(16) < 0.04


@pytest.mark.parametrize(("requests", "busy"), [(0, 1.0), (16, 0.0)])
def test_nothing_teaches_nothing(requests, busy):
    """No request, and a clock too coarse to see any work."""
    floor = HostFloor()
    floor.learn(requests, busy)
    assert floor.seconds(16) == floor.seconds(0) == 0.0


@pytest.mark.parametrize(("busy", "bound"), [(1.0, True), (0.96, True), (0.9, False), (0.0, False)])
def test_a_step_is_its_hosts_where_the_host_hardly_waited(busy, bound):
    """Reading results takes microseconds even where they have long been there."""
    assert host_bound(busy, 1.0) is bound


def test_no_budget_pays_where_the_host_takes_longest(build):
    """Every step takes the host's time, and a trimmed one buys less; counted, and not probed."""
    table = build.table(device, (16,), 128)
    assert device(128) < 0.050
    loop = build.loop(build.manager(table, online=True, explore_share=0.01), device, host=0.050)
    late = served(loop, 60)[-40:]
    assert {plan.state for plan in late} == {PlanState.FULL}
    assert not [plan.reason for plan in late if "exploring" in plan.reason]
    assert loop.manager.counters["host-bound"] == 60
    assert late[-1].predicted_seconds == pytest.approx(0.050)
    # Device prices were taught nothing by the host's times: they are the table's, and inside its bounds.
    loop.host = 0.0001
    fast = served(loop, 100)
    assert sum(plan.state is PlanState.TRIMMING for plan in fast[-40:]) >= 38
    assert fast[-1].predicted_seconds == pytest.approx(device(fast[-1].tier), rel=0.01)
    assert "table-left-bounds" not in loop.manager.counters


def test_without_the_hosts_share_times_are_the_devices(build):
    """Engines that run their steps eagerly cannot tell the two apart, and nothing changes for them."""
    loop = build.loop(build.manager(build.table(device, (16,), 128), online=True), device)
    assert sum(plan.state is PlanState.TRIMMING for plan in served(loop, 60)[-40:]) >= 38


def test_budgets_inside_the_hosts_time_are_free(build):
    """The floor lies between nothing and everything: what fits under it is verified, some of the rest not."""
    host = device(72)
    loop = build.loop(build.manager(build.table(device, (16,), 128), online=True), device, host=host)
    late = served(loop, 100)[-40:]
    bare = build.loop(build.manager(build.table(device, (16,), 128), online=True), device)
    freely = served(bare, 100)[-40:]
    assert min(plan.tokens for plan in late) >= 72 > max(plan.tokens for plan in freely)
    assert max(plan.tokens for plan in late) < 128


def test_ranks_with_equal_tables_know_no_floor(build):
    """Host times differ between ranks; offline models price alike for ever."""
    model = CostModel(build.table(device, (16,), 128), online=False)
    assert not model.refresh(128, 16, 128.0, 0.05, 0.05, host=0.05)
    assert float(model.seconds(128, 16, 128.0)) == device(128)


def test_steps_that_draft_nothing_have_the_same_floor(build):
    """Plain decoding gains nothing either where the host decides."""
    points = [(n, 16, 128, device(n)) for n in (16, 64, 128)]
    table = CostTable.from_points(
        build.table(device, (16,), 128).fingerprint, points, bare=[(16, 16, 128, 0.003)]
    )
    model = CostModel(table, (16, 64, 128))
    model.set_tiers((16, 64, 128), (16,))
    assert model.bare_seconds(16, 128) == pytest.approx(0.003)
    model.refresh(128, 16, 128.0, 0.05, 0.05, host=0.05)
    assert model.bare_seconds(16, 128) == pytest.approx(0.05)
