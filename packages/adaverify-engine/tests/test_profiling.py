"""Profiling runs real decode steps of exactly the shapes asked for."""

from __future__ import annotations

import pytest

from adaverify_contracts import EngineError
from adaverify_engine import (
    Sampling,
    check_cost_table,
    fingerprint,
    grid_for,
    profile_drafting,
    profile_engine,
)
from adaverify_engine.drafters import NgramDrafter
from adaverify_engine.row_tiers import whole_rows
from adaverify_verification import CostTable, ProfileGrid


def test_profile_runs_every_shape_and_is_used(make_engine, tiny, tmp_path):
    """Measured, saved, loaded under an equal fingerprint, and priced; the engine still works afterwards."""
    model = tiny.Decoder()
    engine = make_engine("adaptive", model=model, max_requests=2, draft_tokens=3)
    grid = grid_for(engine.options, contexts=(8, 40), repeats=2)
    model.calls.clear()
    done = []
    table = profile_engine(engine, grid, progress=lambda now, total: done.append((now, total)))
    shapes = grid.shapes()
    assert sorted(set(model.calls)) == sorted({tokens for tokens, _, _ in shapes})
    # More where this machine is not quiet: shapes in doubt are measured again.
    assert done[-1][0] == done[-1][1] >= 2 * len(shapes)
    assert all(seconds > 0 for *_, seconds in table.points)
    path = tmp_path / "table.json"
    table.save(path)
    here = fingerprint(model.geometry, engine.options, engine.verifier.capability, drafter="n-gram")
    assert CostTable.load(path, here).points == table.points
    request = engine.add([1, 2, 3], Sampling(max_tokens=20))
    assert list(engine.run()[request].tokens) == tiny.greedy(model, [1, 2, 3], 20)


def test_no_profiled_request_is_longer_than_a_decode_query():
    """No shape splits into queries longer than K + 1, and none is smaller than its requests (vllm #54046)."""
    from adaverify_engine import EngineOptions

    grid = grid_for(EngineOptions(max_requests=12, draft_tokens=7, max_model_len=512))
    assert all(requests <= tokens <= 8 * requests for tokens, requests, _ in grid.shapes())
    assert {requests for _, requests, _ in grid.shapes()} == {1, 2, 4, 8, 12}
    assert max(tokens for tokens, _, _ in grid.shapes()) == 96


def test_busy_engine_and_impossible_shapes_are_refused(make_engine):
    """Refused with what is there and what would do."""
    engine = make_engine("adaptive", num_pages=20)
    with pytest.raises(EngineError, match="does not hold the shape"):
        profile_engine(engine, grid_for(engine.options, contexts=(40,), repeats=1))
    with pytest.raises(EngineError, match="no room for a decode step"):
        profile_engine(engine, grid_for(engine.options, contexts=(95,), repeats=1))
    engine.add([1], Sampling(max_tokens=4))
    with pytest.raises(EngineError, match="busy"):
        profile_engine(engine)


def test_a_stored_table_is_checked_on_real_steps_of_its_own_shapes(make_engine, tiny):
    """Points of the table run again on an idle engine, which serves afterwards; a busy one is refused."""
    model = tiny.Decoder()
    engine = make_engine("adaptive", model=model, max_requests=2, draft_tokens=3)
    grid = grid_for(engine.options, contexts=(8, 40), repeats=1)
    table = profile_engine(engine, grid)
    model.calls.clear()
    found = check_cost_table(engine, table)
    assert len(found.probes) >= 2
    assert set(model.calls) == {probe.tokens for probe in found.probes}
    assert all(
        probe.now > 0 and (probe.tokens, probe.requests) in {s[:2] for s in grid.shapes()}
        for probe in found.probes
    )
    engine.add([1, 2, 3], Sampling(max_tokens=4))
    with pytest.raises(EngineError, match="busy"):
        check_cost_table(engine, table)
    engine.run()


def test_a_point_of_a_padded_table_runs_as_what_executes_it(make_engine, tiny):
    """3 requests with K = 3 hold 12 tokens; the table has the tier of 16 that they execute."""
    model = tiny.Decoder()
    engine = make_engine("adaptive", model=model, max_requests=3, draft_tokens=3)
    setup = fingerprint(model.geometry, engine.options, engine.verifier.capability)
    table = CostTable.from_points(setup, [(4, 3, 8, 0.001), (16, 3, 8, 0.002)])
    model.calls.clear()
    assert {probe.tokens for probe in check_cost_table(engine, table).probes} == {4, 16}
    assert set(model.calls) == {4, whole_rows(12)}


def test_a_drafter_that_fails_costs_the_price_of_drafting_only(make_engine, tiny):
    """Its steps have no drafts then, and the table says the same: nothing is priced apart."""

    class Failing(NgramDrafter):
        def propose(self, slots, room):
            raise ValueError("not today")

    grid = ProfileGrid(
        requests=(1, 2), contexts=(8,), tokens=(1, 2, 4), draft_tokens=5, padded=False, repeats=1
    )
    engine = make_engine("fixed", drafter=Failing, max_requests=2)
    assert profile_engine(engine, grid).draft == ()
    assert engine.idle


def test_a_table_is_priced_anew_for_another_drafter(make_engine, tiny):
    """Step times stay, drafting and the setup are the new engine's; a captured engine cannot be asked."""
    grid = ProfileGrid(
        requests=(1, 2), contexts=(8,), tokens=(1, 2, 4), draft_tokens=5, padded=False, repeats=1
    )
    table = profile_engine(make_engine("fixed", max_requests=2), grid)
    reading = make_engine("fixed", drafter=tiny.Block, max_requests=2)
    other = profile_drafting(reading, table)
    assert other.curves == table.curves
    assert [count for count, _ in other.draft] == [1, 2]
    assert other.draft != table.draft
    assert reading.idle and not reading.drafter.state.length.any()
    with pytest.raises(EngineError, match="captured steps"):
        profile_drafting(make_engine("fixed", replayed=True, max_requests=2), table)
