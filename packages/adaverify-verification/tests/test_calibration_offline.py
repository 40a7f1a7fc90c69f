"""Temperatures fitted on recorded data (maths section 6)."""

from __future__ import annotations

import numpy as np
import pytest

from adaverify_contracts import CalibrationError
from adaverify_verification.calibration_offline import (
    TEMPERATURES,
    fit_temperatures,
    survivals,
)
from adaverify_verification.reliability import expected_calibration_error


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
    assert fit_temperatures(np.zeros((10, 1)), np.ones(10, np.int64)).tolist() == [1.0]


@pytest.mark.parametrize(
    ("scores", "accepted"), [(np.zeros((0, 2)), np.zeros(0)), (np.zeros((3, 2)), np.zeros(2))]
)
def test_temperatures_need_data(scores, accepted):
    """Nothing recorded, or lengths that disagree, is a typed error."""
    with pytest.raises(CalibrationError, match="recorded"):
        fit_temperatures(scores, accepted)


@pytest.mark.parametrize(
    ("scores", "accepted", "judged", "words"),
    [
        (np.zeros((2, 2)), np.array([3, 0]), None, "accepted positions that do not exist"),
        (np.zeros((2, 2)), np.array([0, -1]), None, "accepted positions that do not exist"),
        (np.zeros((2, 2)), np.array([0.5, 1.0]), None, "do not fit together"),
        (np.zeros((2, 2)), np.array([0, 1]), np.array([3, 2]), "judged positions that do not exist"),
    ],
)
def test_counts_that_cannot_be_are_refused(scores, accepted, judged, words):
    """Not clipped and not read past: the counts are wrong, so the scores beside them may be too."""
    with pytest.raises(CalibrationError, match=words):
        fit_temperatures(scores, accepted, judged)


@pytest.mark.parametrize("score", [np.nan, np.inf, -np.inf, 1e300])
def test_absurd_scores_have_a_defined_fit(score):
    """Rows whose scores are no numbers do not count; the others give what they give alone."""
    generator = np.random.default_rng(1)
    scores = generator.normal(0.5, 2.0, (400, 2))
    accepted = (generator.random((400, 2)) < 0.6).cumprod(axis=1).sum(axis=1)
    found = fit_temperatures(np.vstack([scores, [[score, score]]]), np.append(accepted, 0))
    assert np.isfinite(found).all()
    if np.isnan(score):
        assert found.tolist() == fit_temperatures(scores, accepted).tolist()


def test_a_position_with_few_labels_keeps_the_identity():
    """Tiny windows give absurd temperatures (0.087 was reported in public): position 2 has 7 refusals."""
    scores = np.full((40, 2), 3.0)
    accepted = np.array([0] * 10 + [1] * 7 + [2] * 23)
    judged = np.array([1] * 10 + [2] * 30)
    assert fit_temperatures(scores, accepted, judged, least=8)[1] == 1.0
    assert fit_temperatures(scores, accepted, judged, least=7)[1] != 1.0
    assert fit_temperatures(scores, accepted, judged, least=8)[0] != 1.0


def test_a_fit_is_never_worse_than_none_at_the_first_position():
    """The identity is among the candidates, so the calibration error cannot rise where nothing is frozen."""
    generator = np.random.default_rng(2)
    scores = generator.normal(1.0, 1.0, (300, 1))
    accepted = (generator.random(300) < 0.7).astype(np.int64)
    (found,) = fit_temperatures(scores, accepted)
    errors = [
        expected_calibration_error(survivals(scores, np.array([t]))[:, 0], accepted > 0) for t in (1.0, found)
    ]
    assert errors[1] <= errors[0]
    assert 1.0 in TEMPERATURES
