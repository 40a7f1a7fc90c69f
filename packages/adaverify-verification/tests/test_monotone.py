"""Isotonic regression."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_verification.monotone import isotonic


def test_m10_pools_the_adjacent_violators():
    """Rates (0.4, 0.7, 0.5, 0.8) of equal weight become (0.4, 0.6, 0.6, 0.8)."""
    assert isotonic(np.array([0.4, 0.7, 0.5, 0.8])) == pytest.approx([0.4, 0.6, 0.6, 0.8])


def test_weights_pull_towards_the_heavier_point():
    """A point with three samples counts three times."""
    assert isotonic(np.array([2.0, 1.0]), np.array([1.0, 3.0])) == pytest.approx([1.25, 1.25])


@pytest.mark.parametrize("size", [0, 1])
def test_empty_and_one_element(size):
    """Nothing to pool."""
    values = np.arange(size, dtype=float)
    assert isotonic(values).tolist() == values.tolist()


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=12), st.data())
@settings(max_examples=60, deadline=None)
def test_never_falls_keeps_the_mean_and_stays_between_never_falling_bounds(values, data):
    """Bounds of a rising curve survive, which the online refresh relies on."""
    base = np.sort(np.array(values))
    factors = np.array(data.draw(st.lists(st.floats(0.5, 2.0), min_size=len(values), max_size=len(values))))
    fitted = isotonic(base * factors)
    assert (np.diff(fitted) >= 0).all()
    assert fitted.mean() == pytest.approx((base * factors).mean())
    assert (fitted >= 0.5 * base * (1 - 1e-12)).all()
    assert (fitted <= 2.0 * base * (1 + 1e-12)).all()
