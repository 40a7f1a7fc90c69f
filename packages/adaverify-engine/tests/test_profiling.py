"""Profiling runs real decode steps of exactly the shapes asked for."""

from __future__ import annotations

import pytest

from adaverify_contracts import EngineError
from adaverify_engine import Sampling, fingerprint, grid_for, profile_engine
from adaverify_verification import CostTable


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
    assert done[-1] == (2 * len(shapes), 2 * len(shapes))
    assert all(seconds > 0 for *_, seconds in table.points)
    path = tmp_path / "table.json"
    table.save(path)
    here = fingerprint(model.geometry, engine.options, engine.verifier.capability)
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
