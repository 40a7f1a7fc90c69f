"""The Newton step, readiness and label counting, against figures worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from adaverify_contracts import StepOutcome
from adaverify_verification import calibration
from adaverify_verification.calibration import LogisticFit, label_counts, readiness

ALL = np.ones((1, 2), bool)


def test_label_counts_by_hand():
    """min(accepted + 1, admitted), and none for a request that must not teach."""
    admitted, accepted = np.array([0, 3, 3, 3, 5, 3]), np.array([0, 0, 1, 3, 4, 1])
    outcome = StepOutcome(
        0,
        np.arange(6),
        np.zeros(6, np.int64),
        np.full(6, 5),
        admitted,
        accepted,
        np.zeros((6, 5), np.float32),
        np.array([True] * 5 + [False]),
        np.zeros(6, bool),
        0,
        None,
    )
    assert label_counts(outcome).tolist() == [0, 1, 2, 3, 5, 0]


def test_newton_step_equals_the_dense_solution():
    """The arrowhead form gives what solving the full Hessian gives, then damping applies."""
    generator = np.random.default_rng(2)
    fit = LogisticFit(3)
    z = generator.normal(0, 1, (400, 3))
    labelled = np.ones((400, 3), bool)
    y = generator.random((400, 3)) < 1 / (1 + np.exp(-(0.8 * z + np.array([1.6, 1.4, 1.2]))))
    fit.count(z, labelled, y)
    p = 1 / (1 + np.exp(-1.5))
    hessian = np.zeros((4, 4))
    gradient = np.zeros(4)
    for k in range(3):
        rows = np.zeros((400, 4))
        rows[:, 0], rows[:, k + 1] = z[:, k], 1.0
        hessian += p * (1 - p) * rows.T @ rows
        gradient += rows.T @ (y[:, k] - p)
    step = np.linalg.solve(hessian + 1e-3 * np.eye(4), gradient)
    step[0] *= 1200 / 1250
    # The intercepts answer to the slope step really taken.
    for k in range(3):
        s_kk, s_wk = hessian[k + 1, k + 1] + 1e-3, hessian[0, k + 1]
        step[k + 1] = (gradient[k + 1] - s_wk * step[0]) / s_kk * 400 / 450
    fit.refit()
    assert fit.slope == pytest.approx(step[0], rel=1e-5)
    assert fit.intercepts == pytest.approx(1.5 + step[1:], rel=1e-5)


def test_no_refit_moves_a_logit_by_more_than_two():
    """A saturated fit meets labels that contradict it: bounded steps, no overflow, the right direction."""
    fit = LogisticFit(2)
    fit.intercepts[:] = 30.0
    for _ in range(1000):
        before = fit.intercepts.copy()
        if fit.count(np.zeros((1, 2)), ALL, ~ALL):
            assert (np.abs(fit.intercepts - before) <= calibration.STEP_LIMIT).all()
    assert np.isfinite(fit.intercepts).all() and (fit.intercepts < 0).all()


@pytest.mark.parametrize("score", [np.nan, np.inf, -np.inf, 1e30])
def test_absurd_scores_leave_a_finite_fit(score):
    """NaN labels are skipped; infinities count as the limit."""
    fit = LogisticFit(2)
    for _ in range(64):
        fit.count(np.full((1, 2), score), ALL, np.array([[True, False]]))
    assert np.isfinite(fit.slope) and np.isfinite(fit.intercepts).all() and fit.slope >= 0
    assert (fit.positives.sum() == 0) == bool(np.isnan(score))


def test_integers_make_the_sums_order_free():
    """Counting rows in another order, or in two parts of one step's rows, gives the same bits."""
    generator = np.random.default_rng(3)
    z, y = generator.normal(0, 3, (50, 2)), generator.random((50, 2)) < 0.5
    one, other = LogisticFit(2), LogisticFit(2)
    one.count(z, np.ones((50, 2), bool), y)
    order = generator.permutation(50)
    other.count(z[order], np.ones((50, 2), bool), y[order])
    one.refit()
    other.refit()
    assert one.export_state() == other.export_state()


@pytest.mark.parametrize(
    ("positives", "negatives", "ready", "word"),
    [
        ([0, 0, 0], [0, 0, 0], False, "all positions"),
        ([32, 0, 0], [31, 0, 0], False, "all positions"),
        ([32, 0, 0], [32, 0, 0], False, "position 2: 0 accepted and 0 rejected"),
        ([7, 40, 40], [40, 8, 8], False, "position 1: 7 accepted and 40 rejected"),
        ([8, 40, 40], [40, 8, 8], True, "every position"),
        ([40, 40, 40], [40, 7, 8], False, "position 2: 40 accepted and 7 rejected labels, needs 8 of each"),
        ([40, 40, 119], [40, 8, 8], True, "every position"),
        ([40, 40, 126], [40, 8, 1], False, "position 3"),
        ([40, 40, 127], [40, 8, 1], True, "every position"),
        ([511, 0, 0], [0, 0, 0], False, "all positions"),
        ([300, 40, 40], [211, 40, 0], False, "position 3"),
        ([300, 40, 40], [212, 40, 0], True, "positions 3 have few labels"),
        ([512, 0, 0], [0, 0, 0], True, "2, 3"),
        ([0, 0, 0], [512, 0, 0], True, "2, 3"),
        ([], [], False, "all positions"),
    ],
)
def test_readiness_thresholds(positives, negatives, ready, word):
    """The neighbours of every threshold, with the reason naming what is short."""
    found, reason = readiness(np.array(positives, np.int64), np.array(negatives, np.int64))
    assert found is ready and word in reason


def test_reliability_of_an_empty_fit():
    """No labels, no figures: None and not a division by zero."""
    assert LogisticFit(1).reliability() == [{"position": 1, "labels": 0, "predicted": None, "observed": None}]
