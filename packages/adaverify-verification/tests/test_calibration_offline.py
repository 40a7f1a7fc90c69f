"""Fits on recorded data: temperatures, isotonic rates, censoring (maths section 6)."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from adaverify_contracts import CalibrationError
from adaverify_verification.calibration_offline import (
    expected_calibration_error,
    fit_temperatures,
    isotonic_rates,
    weighted_rate,
)


def test_m10_isotonic_pools_violators():
    """M10: (0.4, 0.7, 0.5, 0.8) of equal weight become (0.4, 0.6, 0.6, 0.8)."""
    assert isotonic_rates(np.array([0.4, 0.7, 0.5, 0.8])) == pytest.approx([0.4, 0.6, 0.6, 0.8])


@hypothesis.given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 5)), max_size=12))
@hypothesis.settings(max_examples=100, deadline=None)
def test_isotonic_is_monotone_and_keeps_the_mean(pairs):
    """Non-decreasing, the weighted mean kept, and data already in order untouched."""
    rates, weights = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    fitted = isotonic_rates(rates, weights)
    assert len(fitted) == len(rates) and (np.diff(fitted) >= -1e-12).all()
    assert float((fitted * weights).sum()) == pytest.approx(float((rates * weights).sum()), abs=1e-9)
    assert isotonic_rates(np.sort(rates), weights) == pytest.approx(np.sort(rates), abs=1e-9)


def test_m11_exploration_undoes_censoring():
    """M11: half at 0.9 always admitted, half at 0.3 once in ten: the rate is 0.6, not 0.9."""
    good = np.array([True] * 900 + [False] * 100)
    poor = np.array([True] * 30 + [False] * 70)
    accepted = np.concatenate([good, poor])
    admission = np.concatenate([np.ones(1000), np.full(100, 0.1)])
    assert weighted_rate(good, np.ones(1000)) == pytest.approx(0.9)
    assert weighted_rate(accepted, admission) == pytest.approx(0.6)


def test_temperatures_recover_over_confident_scores():
    """Scores sharpened by 2 at position 2 only are answered with T near (1, 2)."""
    generator = np.random.default_rng(0)
    logits = generator.normal(0.5, 1.0, (20000, 2))
    hits = generator.random(logits.shape) < 1 / (1 + np.exp(-logits))
    accepted = np.cumprod(hits, axis=1).sum(axis=1)
    found = fit_temperatures(logits * np.array([1.0, 2.0]), accepted)
    assert found[0] == pytest.approx(1.0, rel=0.2)
    assert found[1] == pytest.approx(2.0, rel=0.3)


def test_temperatures_cannot_move_a_zero_score():
    """No bias term: z = 0 stays 0.5 for every T, and of equal errors T = 1 is nearest."""
    found = fit_temperatures(np.zeros((10, 1)), np.ones(10, np.int64))
    assert abs(np.log(found[0])) < 0.05


@pytest.mark.parametrize(
    ("scores", "accepted"), [(np.zeros((0, 2)), np.zeros(0)), (np.zeros((3, 2)), np.zeros(2))]
)
def test_temperatures_need_data(scores, accepted):
    """Nothing recorded, or lengths that disagree, is a typed error."""
    with pytest.raises(CalibrationError, match="recorded"):
        fit_temperatures(scores, accepted)


def test_calibration_error_by_hand():
    """Two bins: (0.25 predicted, 0 observed) and (0.75 predicted, 1 observed) miss by 0.25 each."""
    predicted = np.array([0.25, 0.25, 0.75, 0.75])
    assert expected_calibration_error(predicted, predicted > 0.5) == pytest.approx(0.25)
    assert expected_calibration_error(np.zeros(0), np.zeros(0, bool)) == 0.0
