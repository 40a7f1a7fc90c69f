"""Measuring a table."""

import numpy as np
import pytest

from adaverify_contracts import CostTableError, Limits
from adaverify_verification import CostModel, CostTable, Fingerprint, ProfileGrid, profile_cost

HERE = Fingerprint.from_mapping({"device": "cpu"})


def true_seconds(tokens, requests, context):
    return 0.01 + 0.001 * tokens + 0.002 * requests + 1e-7 * requests * context


def test_a_profiled_table_prices_what_was_measured():
    """Interleaved medians recover the cost, a stall in one round included."""
    grid = ProfileGrid((1, 4, 16), (128, 1024), (1, 2, 4, 8, 16, 32, 64, 128), draft_tokens=7)
    calls = []

    def measure(tokens, requests, context):
        calls.append((tokens, requests, context))
        stall = 50.0 if len(calls) % 37 == 0 else 1.0
        return true_seconds(tokens, requests, context) * stall

    seen = []
    table = profile_cost(measure, grid, HERE, progress=lambda done, total: seen.append((done, total)))
    model = CostModel(table)
    for tokens, requests, context in grid.shapes():
        price = float(model.seconds(np.array([tokens]), requests, context)[0])
        assert price == pytest.approx(true_seconds(tokens, requests, context), rel=1e-9)
    assert len(calls) == len(grid.shapes()) * (grid.warmup + grid.repeats)
    assert seen[-1] == (len(grid.shapes()) * grid.repeats,) * 2


def test_no_profiled_decode_is_longer_than_k_plus_one():
    """vllm #54046, #54065: 128 requests, K = 7, 16384 tokens; past 1024 rows there is no decode shape."""
    limits = Limits(max_requests=128, draft_tokens=7, max_model_len=4096, page_size=64)
    for grid in (
        ProfileGrid.covering(limits),
        ProfileGrid.covering(limits, tiers=(8, 64, 512, 1024, 16384)),
        ProfileGrid((1, 128), (64,), (1, 1024, 2048, 16384), 7),
    ):
        shapes = grid.shapes()
        assert max(tokens for tokens, _, _ in shapes) == 1024
        assert all(requests <= tokens <= 8 * requests for tokens, requests, _ in shapes)


def test_padded_shapes_are_stored_at_the_size_that_executes():
    """3 requests, K = 7, tiers 16 and 32: 24 tokens execute 32."""
    grid = ProfileGrid((3,), (64,), (16, 32), 7, padded=True, warmup=0, repeats=1)
    table = profile_cost(lambda tokens, *_: 1.0 if tokens <= 16 else 2.0, grid, HERE)
    assert table.points == ((16, 3, 64, 1.0), (32, 3, 64, 2.0))


def test_rounds_are_interleaved_and_alternate_in_direction():
    """A clock that drifts moves all shapes alike."""
    grid = ProfileGrid((2,), (0,), (2, 4), 1, warmup=1, repeats=2)
    order = []
    profile_cost(lambda tokens, *_: order.append(tokens) or 1.0, grid, HERE)
    assert order == [2, 4, 2, 4, 4, 2]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_run_that_returned_no_time_names_its_shape(value):
    """A broken clock is found while profiling."""
    grid = ProfileGrid((2,), (64,), (2, 4), 1, warmup=0)
    with pytest.raises(CostTableError, match="4 tokens, 2 requests, context 64"):
        profile_cost(lambda tokens, *_: value if tokens == 4 else 1.0, grid, HERE)


def test_drafting_is_measured_apart_where_it_can_be_skipped():
    """One price a number of requests."""
    grid = ProfileGrid((1, 4), (0,), (1, 4), 3, warmup=0)
    table = profile_cost(true_seconds, grid, HERE, measure_draft=lambda requests: 0.1 * requests)
    assert table.draft == ((1, 0.1), (4, 0.4))


@pytest.mark.parametrize(
    "changes",
    [{"requests": ()}, {"requests": (4, 1)}, {"contexts": (-1,)}, {"tokens": (0, 4)}, {"repeats": 0}],
)
def test_a_grid_that_measures_nothing_is_refused(changes):
    """Axes rise and are not empty."""
    with pytest.raises(CostTableError):
        ProfileGrid(**{"requests": (1,), "contexts": (0,), "tokens": (1,), "draft_tokens": 3, **changes})


def test_a_single_request_without_drafts_is_an_ordinary_grid():
    """R = 1, K = 0."""
    grid = ProfileGrid.covering(Limits(max_requests=1, draft_tokens=0, max_model_len=64, page_size=16))
    assert {shape[:2] for shape in grid.shapes()} == {(1, 1)}


@pytest.mark.parametrize("disturbed", [1, 2, 3])
def test_rounds_that_were_disturbed_do_not_price_the_table(disturbed):
    """Up to 3 of 5 rounds took 9 times as long; a plain median is wrong at 3 (vllm #52057)."""
    grid = ProfileGrid((4,), (128,), (4, 8, 16, 32), draft_tokens=7, warmup=0, repeats=5)
    runs = 0

    def measure(tokens, requests, context):
        nonlocal runs
        turn, runs = runs // len(grid.shapes()), runs + 1
        return true_seconds(tokens, requests, context) * (9.0 if turn < disturbed else 1.0)

    table = profile_cost(measure, grid, HERE)
    for tokens, requests, context, seconds in table.points:
        assert seconds == pytest.approx(true_seconds(tokens, requests, context), rel=1e-9)
    assert len(table.outliers) == len(grid.shapes())
    assert f"4 tokens, 4 requests, context 128: {disturbed} of 5 rounds disturbed" in table.outliers[0]


def test_a_quiet_profile_names_nothing_and_one_lucky_round_is_no_price():
    """2 % of noise is no disturbance; a round 30 % too fast moves the price by the noise only."""
    grid = ProfileGrid((4,), (128,), (4, 8, 16, 32), draft_tokens=7, warmup=0, repeats=5)
    noise = np.random.default_rng(0)
    runs = 0

    def measure(tokens, requests, context):
        nonlocal runs
        turn, runs = runs // len(grid.shapes()), runs + 1
        return true_seconds(tokens, requests, context) * (0.7 if turn == 2 else 1 + 0.02 * noise.random())

    table = profile_cost(measure, grid, HERE)
    assert table.outliers == ()
    for tokens, requests, context, seconds in table.points:
        assert seconds == pytest.approx(true_seconds(tokens, requests, context), rel=0.021)


def test_what_was_disturbed_survives_the_disk(tmp_path):
    """A table measured on a busy machine says so wherever it is loaded."""
    grid = ProfileGrid((1,), (0,), (1, 2), draft_tokens=1, warmup=0, repeats=4)
    times = iter([1.0, 2.0, 2.0, 1.0, 9.0, 2.0, 2.0, 1.0])
    table = profile_cost(lambda *_: next(times), grid, HERE)
    assert table.outliers == (
        "1 tokens, 1 requests, context 0: 1 of 4 rounds disturbed, up to 9 s, used 1 s",
    )
    table.save(tmp_path / "table.json")
    assert CostTable.load(tmp_path / "table.json", HERE) == table
