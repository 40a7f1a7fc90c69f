"""Prices: the tier that executes, interpolation elsewhere, bounded refresh."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import CostTableError
from adaverify_verification import CostModel, CostTable, Fingerprint

HERE = Fingerprint.from_mapping({"device": "cpu"})
# One H200-like curve measured on two of three axes.
CPU = [(1, 0.022), (2, 0.024), (8, 0.024), (16, 0.033), (32, 0.053), (64, 0.065), (128, 0.110)]


def table(curve=CPU, requests=16, context=128, **more):
    return CostTable.from_points(HERE, [(n, requests, context, s) for n, s in curve], **more)


def at(model, tokens, requests=16, context=128):
    return float(model.seconds(np.array([tokens]), requests, context)[0])


def test_a_batch_costs_what_the_tier_that_holds_it_costs():
    """sparkinfer #911: a price per executed width, never a line between two tiers."""
    model = CostModel(table(), (8, 16, 32, 64))
    assert at(model, 8) == 0.024
    assert at(model, 9) == 0.033
    assert at(model, 16) == 0.033
    assert at(model, 17) == 0.053
    assert at(model, 32) == 0.053
    # Past the last tier: between measured points.
    assert at(model, 65) == pytest.approx(0.065 + 0.045 / 64)


def test_without_tiers_prices_lie_between_measured_points():
    """Eager mode: every size executes as itself; the fixed part stays in."""
    model = CostModel(table())
    assert at(model, 12) == pytest.approx(0.0285)
    assert at(model, 1) == 0.022
    assert at(model, 256) == pytest.approx(0.110 + 128 * (0.110 - 0.033) / 112)


def test_requests_are_an_axis():
    """lil-vllm #748: 8 rows as 1 request cost 1.0, as 8 requests 1.4."""
    model = CostModel(
        CostTable.from_points(HERE, [(8, 1, 0, 1.0), (16, 1, 0, 1.2), (8, 8, 0, 1.4), (16, 8, 0, 2)])
    )
    assert at(model, 8, 1, 0) == 1.0
    assert at(model, 8, 8, 0) == 1.4
    assert 1.0 < at(model, 8, 4, 0) < 1.4
    assert at(model, 8, 64, 0) == 1.4


def test_context_is_an_axis():
    """tokenspeed #1132: cost that rises with context; the nearest level outside the measured range."""
    points = [(1, 1, 1000, 1.0), (8, 1, 1000, 1.1), (1, 1, 131000, 4.0), (8, 1, 131000, 9.0)]
    model = CostModel(CostTable.from_points(HERE, points))
    assert at(model, 8, 1, 1000) == pytest.approx(1.1)
    assert at(model, 8, 1, 66000) == pytest.approx(5.05)
    assert at(model, 8, 1, 1) == pytest.approx(1.1)
    assert at(model, 8, 1, 10**7) == pytest.approx(9.0)


@pytest.mark.parametrize(
    ("curve", "priced"),
    [
        ([(1, 1.0), (8, 1.0), (64, 1.0)], False),
        ([(1, 1.0), (8, 1.005)], False),
        ([(4, 1.0)], False),
        ([(1, 1.0), (2, 1.0), (3, 1.0), (4, 5.0)], True),
        (CPU, True),
    ],
)
def test_a_flat_table_is_unpriced_and_says_so(curve, priced):
    """sglang #35413: a table that cannot tell budgets apart is a state, not a plan."""
    model = CostModel(table(curve))
    assert model.priced is priced
    assert priced or "flat" in model.reason


def test_no_table_is_unpriced_and_cannot_be_asked():
    """Ask ``priced`` first."""
    model = CostModel(None)
    assert not model.priced
    assert "adaverify profile" in model.reason
    assert model.draft_seconds(4) == 0.0
    assert model.rejected_seconds == 0.0
    assert model.refresh(8, 8, 0, 1.0) is False
    with pytest.raises(CostTableError):
        at(model, 8)


def test_draft_time_is_priced_per_number_of_requests():
    """ds4 #621: drafting is paid though nothing is verified."""
    model = CostModel(table(draft=[(1, 0.01), (16, 0.02)]))
    assert model.draft_seconds(1) == 0.01
    assert model.draft_seconds(16) == 0.02
    assert 0.01 < model.draft_seconds(8) < 0.02


def test_live_cost_above_64_rows_is_learnt_and_below_left_alone():
    """vllm #52057: table made at context 8192, live cost 1.6x above 64 rows."""
    curve = [(8, 1.0), (32, 1.5), (64, 2.0), (96, 2.6), (128, 3.0)]
    model = CostModel(table(curve))
    truth = {n: s * (1.6 if n > 64 else 1.0) for n, s in curve}
    generator = np.random.default_rng(0)
    for _ in range(1500):
        tokens = int(generator.choice([32, 64, 96, 128]))
        model.refresh(tokens, 16, 128, truth[tokens] * generator.normal(1.0, 0.02))
    for tokens, seconds in truth.items():
        # 8 rows were never visited: only the common factor may have moved them.
        assert at(model, tokens) == pytest.approx(seconds, rel=0.35 if tokens == 8 else 0.05)


def test_a_machine_that_is_slower_as_a_whole_moves_sizes_never_visited():
    """Otherwise every size never tried would look cheap."""
    model = CostModel(table())
    for _ in range(400):
        model.refresh(128, 16, 128, 0.110 * 1.4)
    assert at(model, 128) == pytest.approx(0.154, rel=0.02)
    assert at(model, 16) / 0.033 > 1.15


def test_a_machine_whose_speed_moves_keeps_the_shape_of_its_prices():
    """A shared machine's fast moments met more full steps than trimmed ones, and full steps looked cheap."""
    model, generator = CostModel(table()), np.random.default_rng(0)
    for step in range(600):
        fast = step // 30 % 2
        tokens = 128 if generator.random() < (0.75 if fast else 0.25) else 64
        model.refresh(tokens, 16, 128, dict(CPU)[tokens] * (0.65 if fast else 1.0))
    assert at(model, 128) / at(model, 64) == pytest.approx(0.110 / 0.065, rel=0.12)


@given(
    st.lists(
        st.tuples(st.integers(1, 300), st.integers(1, 64), st.floats(0, 9e4), st.floats(1e-6, 1e6)),
        max_size=60,
    ),
    st.sampled_from([(), (8, 32, 128)]),
)
@settings(max_examples=40, deadline=None)
def test_refresh_is_bounded_and_prices_never_fall(measurements, tiers):
    """Whatever is reported, prices stay within [0.5, 2] of the table and rise with tokens."""
    points = [(n, r, c, s * (1 + c / 1e5)) for r in (1, 16) for c in (128, 8192) for n, s in CPU]
    fresh, model = (CostModel(CostTable.from_points(HERE, points), tiers) for _ in range(2))
    for tokens, requests, context, seconds in measurements:
        model.refresh(tokens, requests, context, seconds)
    every = np.arange(1, 200)
    for requests, context in ((1, 128), (8, 5000), (16, 8192)):
        prices = model.seconds(every, requests, context)
        ratio = prices / fresh.seconds(every, requests, context)
        measured = every <= 128
        assert (np.diff(prices) >= -1e-12).all()
        assert (ratio[measured] > 0.5 - 1e-9).all()
        assert (ratio[measured] < 2 + 1e-9).all()


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_measurement_that_is_no_time_does_not_count(seconds):
    """A clock that failed teaches nothing."""
    model = CostModel(table())
    assert model.refresh(16, 16, 128, seconds) is False
    assert at(model, 16) == 0.033


def test_offline_models_never_change():
    """Equal tables then mean equal plans on every rank."""
    model = CostModel(table(), online=False)
    assert model.refresh(16, 16, 128, 9.0) is False
    assert at(model, 16) == 0.033


def test_tiers_can_shrink_after_a_failed_capture():
    """A dropped size executes the next one up."""
    model = CostModel(table(), (8, 16, 32))
    assert at(model, 9) == 0.033
    model.set_tiers((8, 32))
    assert at(model, 9) == 0.053
