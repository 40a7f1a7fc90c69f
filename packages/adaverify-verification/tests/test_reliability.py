"""Calibration error, ranking and Brier score of survivals, against figures worked by hand."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from adaverify_contracts import CalibrationError
from adaverify_verification.reliability import (
    BINS,
    area_under_curve,
    assess,
    brier_score,
    chance_error,
    expected_calibration_error,
)


def test_calibration_error_by_hand():
    """Two bins: (0.25 predicted, 0 observed) and (0.75 predicted, 1 observed) miss by 0.25 each."""
    predicted = np.array([0.25, 0.25, 0.75, 0.75])
    assert expected_calibration_error(predicted, predicted > 0.5) == pytest.approx(0.25)
    assert expected_calibration_error(np.zeros(0), np.zeros(0, bool)) == 0.0


def test_area_by_hand():
    """Of the pairs (0.9, 0.2), (0.9, 0.5), (0.5, 0.2), (0.5, 0.5) three and a half are in order."""
    predicted, observed = np.array([0.9, 0.5, 0.2, 0.5]), np.array([True, True, False, False])
    assert area_under_curve(predicted, observed) == pytest.approx(3.5 / 4)
    assert area_under_curve(predicted, np.ones(4, bool)) is None
    assert area_under_curve(np.zeros(0), np.zeros(0, bool)) is None


@hypothesis.given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=2, max_size=30))
@hypothesis.settings(max_examples=100, deadline=None)
def test_area_equals_counting_all_pairs(pairs):
    """Ties count half, and turning the order around turns the area around."""
    predicted, observed = np.array([p for p, _ in pairs]), np.array([y for _, y in pairs])
    yes, no = predicted[observed], predicted[~observed]
    found = area_under_curve(predicted, observed)
    if not len(yes) or not len(no):
        assert found is None
        return
    counted = np.sign(yes[:, None] - no[None, :])
    assert found == pytest.approx(float((counted + 1).mean() / 2))
    assert area_under_curve(-predicted, observed) == pytest.approx(1 - found)


def test_brier_by_hand():
    """Sure and right 0, sure and wrong 1, undecided a quarter."""
    assert brier_score(np.array([1.0, 0.0, 0.5]), np.array([True, True, False])) == pytest.approx(1.25 / 3)
    assert brier_score(np.zeros(0), np.zeros(0, bool)) is None


def test_positions_are_judged_on_the_product_against_the_accepted_prefix():
    """Position 2 counts whole prefixes: a refusal at 1 is one at 2; a row cut at 1 is left out there."""
    survivals = np.array([[0.9, 0.81], [0.5, 0.05], [0.9, 0.9], [0.5, 0.5]])
    first, second = assess(survivals, np.array([2, 0, 1, 1]), np.array([2, 2, 1, 2]))
    assert (first.rows, first.accepted, first.observed) == (4, 3, 0.75)
    assert first.predicted == pytest.approx(0.7)
    assert (second.rows, second.accepted) == (3, 1)
    assert second.auc == 1.0
    assert second.brier == pytest.approx((0.19**2 + 0.05**2 + 0.5**2) / 3)
    assert [(b.rows, round(b.predicted, 3), b.observed) for b in second.bins] == [
        (1, 0.05, 0.0),
        (1, 0.5, 0.0),
        (1, 0.81, 1.0),
    ]
    assert second.ece == pytest.approx((0.05 + 0.5 + 0.19) / 3)


def test_a_position_without_rows_has_no_figures():
    """None, not zero and not a division by it."""
    (found,) = assess(np.zeros((1, 1)), np.zeros(1, np.int64), np.zeros(1, np.int64))
    assert found.as_dict() == {
        "position": 1,
        "rows": 0,
        "accepted": 0,
        **dict.fromkeys(("predicted", "observed", "ece", "floor", "limit", "auc", "brier")),
        "bins": (),
    }


def test_the_floor_is_what_true_predictions_miss_by_chance():
    """By simulation: labels drawn from the predictions themselves give this error, and 5 % of them more."""
    generator = np.random.default_rng(0)
    predicted = generator.beta(2.0, 1.0, 1500)
    mean, limit = chance_error(predicted)
    drawn = [
        expected_calibration_error(predicted, generator.random(predicted.shape) < predicted)
        for _ in range(1000)
    ]
    assert mean == pytest.approx(float(np.mean(drawn)), rel=0.03)
    assert 0.02 < float(np.mean(np.array(drawn) > limit)) < 0.08
    assert chance_error(np.repeat(predicted, 4))[0] == pytest.approx(mean / 2)
    assert chance_error(predicted[::-1]) == (mean, limit)


def test_certain_predictions_have_no_floor():
    """Nothing is left to chance where every label is certain, nor where there is none."""
    assert chance_error(np.array([0.0, 1.0, 1.0])) == (0.0, 0.0) == chance_error(np.zeros(0))
    with pytest.raises(CalibrationError, match="no probability"):
        chance_error(np.array([1.5]))


survival = st.floats(0, 1)


@hypothesis.given(st.lists(st.tuples(survival, st.booleans()), min_size=1, max_size=40), st.randoms())
@hypothesis.settings(max_examples=100, deadline=None)
def test_the_error_is_bounded_and_free_of_order(pairs, shuffler):
    """Between the overall miss and 1, and the same bits for rows in another order."""
    predicted, observed = np.array([p for p, _ in pairs]), np.array([y for _, y in pairs])
    error = expected_calibration_error(predicted, observed)
    assert abs(float((predicted - observed).mean())) - 1e-6 <= error <= 1.0
    order = list(range(len(pairs)))
    shuffler.shuffle(order)
    assert expected_calibration_error(predicted[order], observed[order]) == error


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -0.001, 1.001])
def test_what_is_no_probability_is_refused(wrong):
    """The value that arrived is named; a diagram of it would lie."""
    with pytest.raises(CalibrationError, match="no probability"):
        expected_calibration_error(np.array([0.5, wrong]), np.array([True, False]))
    with pytest.raises(CalibrationError, match="no probability"):
        assess(np.array([[wrong]]), np.array([1]), np.array([1]))


def test_ends_of_the_scale_have_bins():
    """0 and 1 are the first and the last bin, not one past it."""
    (found,) = assess(np.array([[0.0], [1.0]]), np.array([0, 1]), np.array([1, 1]))
    assert found.ece == 0.0 and len(found.bins) == 2 and BINS == 10


def test_lengths_that_disagree_are_refused():
    """Both shapes are in the message."""
    with pytest.raises(CalibrationError, match="do not fit together"):
        assess(np.zeros((2, 3)), np.zeros(3, np.int64), np.zeros(3, np.int64))
