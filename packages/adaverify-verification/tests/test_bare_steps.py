"""Captured steps that draft nothing: their prices, the choice between both kinds, and the way back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from adaverify_contracts import CostTableError, PlanError, PlanState
from adaverify_verification import CostModel, CostTable, Fingerprint, ProfileGrid, profile_cost

HERE = Fingerprint.from_mapping({"device": "card"})
TIERS, BARE = (24, 64, 128), (6, 16)


def price(tokens):
    """A step that drafts; 16 requests verify nothing at 24 tokens."""
    return 0.010 + 0.0005 * tokens


def table_of(bare, *, requests=(4, 16), contexts=(16, 128)):
    points = [(n, r, c, price(n)) for n in TIERS for r in requests for c in contexts]
    free = [(n, n, c, bare * n / 16) for n in BARE for c in contexts]
    return CostTable.from_points(HERE, points, bare=free)


def manager_of(build, table, **options):
    manager = build.manager(table, requests=16, tiers=TIERS, warmup_steps=0, **options)
    manager.set_tiers(TIERS, BARE)
    return manager


def test_prices_survive_a_file_and_a_file_without_them_means_what_it_meant(tmp_path):
    table = table_of(0.01)
    table.save(tmp_path / "table.json")
    loaded = CostTable.load(tmp_path / "table.json", HERE)
    assert loaded == table
    assert loaded.bare == tuple((n, n, c, 0.01 * n / 16) for c in (16, 128) for n in BARE)
    plain = CostTable.from_points(HERE, table.points)
    plain.save(tmp_path / "plain.json")
    assert "bare" not in json.loads((tmp_path / "plain.json").read_text())
    assert CostTable.load(tmp_path / "plain.json", HERE).bare == ()
    assert table.scaled(2.0).bare == tuple((*point[:3], 2 * point[3]) for point in table.bare)


def test_a_bare_step_of_two_tokens_a_request_is_refused():
    with pytest.raises(CostTableError, match="one token a request"):
        CostTable.from_points(HERE, [(8, 1, 16, 0.1)], bare=[(8, 4, 16, 0.1)])


def test_a_step_is_priced_at_the_size_that_executes_it():
    """3 requests run as 6, 7 as 16; between contexts on the line; no table, no price."""
    model = CostModel(
        CostTable.from_points(
            HERE,
            [(8, 1, 0, 1.0), (16, 1, 0, 2.0)],
            bare=[(6, 6, 0, 0.2), (6, 6, 100, 0.4), (16, 16, 0, 0.8), (16, 16, 100, 1.0)],
        )
    )
    model.set_tiers((8, 16), BARE)
    assert model.bare_seconds(3, 0) == pytest.approx(0.2)
    assert model.bare_seconds(6, 50) == pytest.approx(0.3)
    assert model.bare_seconds(7, 1000) == pytest.approx(1.0)
    assert CostModel(None).bare_seconds(3, 0) is None
    assert CostModel(CostTable.from_points(HERE, [(8, 1, 0, 1.0)])).bare_seconds(3, 0) is None


def test_served_bare_steps_teach_their_own_price_and_the_common_level():
    """They are 1.5 times dearer than measured; steps that draft move by the common part only."""
    model = CostModel(table_of(0.010))
    model.set_tiers(TIERS, BARE)
    before = float(model.seconds(24, 16, 64))
    for _ in range(200):
        assert model.refresh(16, 16, 64, 0.015, bare=True)
        model.refresh(24, 16, 64, before)
    assert model.bare_seconds(16, 64) == pytest.approx(0.015, rel=0.05)
    assert float(model.seconds(24, 16, 64)) == pytest.approx(before, rel=0.05)
    assert not CostModel(CostTable.from_points(HERE, [(8, 1, 0, 1.0)])).refresh(1, 1, 0, 1.0, bare=True)


def test_drafting_stops_where_captured_plain_steps_are_better_and_comes_back(build):
    """Nothing survives, then everything: the same arm as in eager steps, from prices of whole replays."""
    manager = manager_of(build, table_of(0.012), explore_share=0.05)
    bare = []
    loop = build.loop(manager, lambda tier: 0.012 if bare[-1] else price(tier))
    drafted = []
    for step in range(400):
        drafts, reason = manager.draft_next(16, 16 * 64)
        bare.append(not drafts)
        drafted.append(drafts)
        survival = 0.02 if step < 200 else 0.97
        plan = loop.serve(np.full((16, 7), survival), scheduled=np.full(16, 7 * drafts), kv_tokens=16 * 64)
        if not drafts:
            assert "drafting loses" in reason
            assert (plan.state, plan.tier, plan.scheduled, plan.budget) == (PlanState.IDLE, 16, 0, 0)
            assert plan.predicted_seconds == pytest.approx(0.012, rel=0.2)
    assert sum(drafted[50:200]) < 15, "probes alone"
    assert sum(drafted[50:200]) > 0
    assert sum(drafted[300:]) == 100
    assert not manager.counters


def test_probes_lose_no_more_than_their_share(build):
    """A probe verifies everything, which loses far more than drafting: it is charged what it really lost."""
    manager = manager_of(build, table_of(0.012), explore_share=0.01)
    bare = []
    loop = build.loop(manager, lambda tier: 0.012 if bare[-1] else price(tier))
    for _ in range(1000):
        drafts, _ = manager.draft_next(16, 16 * 64)
        bare.append(not drafts)
        loop.serve(np.full((16, 7), 0.02), scheduled=np.full(16, 7 * drafts), kv_tokens=16 * 64)
    assert bare[100:].count(False) > 0
    assert loop.rate > 0.97 * 16 / 0.012


def test_drafting_goes_on_where_it_pays_and_where_plain_steps_have_no_price(build):
    for table in (table_of(0.018), CostTable.from_points(HERE, table_of(0.012).points)):
        manager = manager_of(build, table)
        loop = build.loop(manager, price)
        for _ in range(60):
            assert manager.draft_next(16, 16 * 64)[0]
            loop.serve(np.full((16, 7), 0.9), kv_tokens=16 * 64)


def test_a_step_with_prefill_is_neither_padded_to_bare_sizes_nor_judged_by_their_price(build):
    """It runs eagerly: nothing about drafting follows from it."""
    manager = manager_of(build, table_of(0.001))
    loop = build.loop(manager, price)
    for _ in range(20):
        loop.serve(np.full((16, 7), 0.02), other_tokens=100, kv_tokens=16 * 64)
    assert manager.draft_next(16, 16 * 64)[0]
    plan = loop.serve(np.zeros((16, 7)), scheduled=np.zeros(16, dtype=np.int64), other_tokens=100)
    assert plan.tier == 116


def test_bare_tiers_are_rising_counts(build):
    with pytest.raises(PlanError, match="rising"):
        build.manager(table_of(0.01), requests=16).set_tiers(TIERS, (16, 6))


def test_profiling_times_them_apart_and_settles_them_likewise():
    """A stalled round is forgotten; progress and the number of timings count both kinds."""
    grid = ProfileGrid((4, 16), (16, 128), TIERS, 7, padded=True, bare=BARE, warmup=1, repeats=5)
    calls, seen = [], []

    def measure_bare(tokens, requests, context):
        assert tokens == requests
        calls.append((tokens, context))
        return (0.001 * tokens + 1e-6 * context) * (50.0 if len(calls) == 9 else 1.0)

    table = profile_cost(
        lambda tokens, *_: price(tokens),
        grid,
        HERE,
        measure_bare=measure_bare,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert table.bare == tuple((n, n, c, 0.001 * n + 1e-6 * c) for c in (16, 128) for n in BARE)
    assert len(calls) == 4 * 6
    assert seen[-1] == ((len(grid.shapes()) + 4) * 5,) * 2
    assert grid.most_timings == (len(grid.shapes()) + 4) * (1 + 5 * (1 + grid.retries))
    assert profile_cost(lambda tokens, *_: price(tokens), grid, HERE).bare == ()
