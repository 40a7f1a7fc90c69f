"""Fitting on some prompts and judging by others, for both forms."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from adaverify_contracts import CalibrationError, Limits, StepOutcome
from adaverify_verification.calibration import LogisticFit
from adaverify_verification.calibration_study import SIGNALS, calibration_state, cross_study, study
from adaverify_verification.evidence import Evidence
from adaverify_verification.signals import CalibratedSignal, TemperatureScaledSignal


def recorded(count=3000, *, factor=2.0, shift=0.0, seed=0, prompts=60) -> Evidence:
    """Rows whose scores are the true logits, sharpened and shifted."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0.5, 1.2, (count, 3))
    accepted = np.cumprod(generator.random((count, 3)) < 1 / (1 + np.exp(-logits)), axis=1).sum(axis=1)
    full = np.full(count, 3, np.int64)
    return Evidence(factor * logits + shift, accepted, full, np.arange(count) % prompts)


def mean_error(reports) -> float:
    return float(np.mean([one.ece for one in reports]))


@pytest.mark.parametrize("signal", SIGNALS)
def test_calibration_lowers_the_error_on_prompts_it_did_not_see(signal):
    """Scores sharpened by 2 are over-confident; either form mends that, and the ranking stays."""
    found = study("greedy", recorded(), signal)
    assert found.fitted == (42, 2100) and found.held_out == (18, 900)
    assert mean_error(found.after) < 0.5 * mean_error(found.before)
    assert all(one.rows == 900 for one in found.before)
    assert found.after[0].auc == pytest.approx(found.before[0].auc, abs=1e-9)
    assert all(after.brier < before.brier for before, after in zip(found.before, found.after, strict=True))
    assert found.short == ()


@pytest.mark.parametrize("signal", SIGNALS)
def test_folds_judge_every_prompt_by_a_fit_that_did_not_see_it(signal):
    """All rows are judged, by other fits than the one that is kept, which is that of all rows."""
    rows = recorded()
    found, whole = cross_study("greedy", rows, signal), study("greedy", rows, signal, held_out=0.02)
    assert (found.folds, found.fitted, found.held_out) == (5, (60, 3000), (60, 3000))
    assert mean_error(found.after) < 0.5 * mean_error(found.before)
    assert all(one.rows == 3000 for one in found.after)
    assert all(one.ece < one.limit + 0.01 < 0.04 for one in found.after)
    for name, values in found.parameters.items():
        assert values == pytest.approx(whole.parameters[name], abs=0.3)
    halves = cross_study("greedy", rows, signal, folds=2)
    assert halves.parameters == found.parameters
    assert [one.ece for one in halves.after] != [one.ece for one in found.after]


def test_a_prompt_is_never_judged_by_its_own_labels():
    """With labels of pure noise a fit that saw its own rows would look better than the share of accepted."""
    generator = np.random.default_rng(5)
    scores = generator.normal(0, 3, (40, 1))
    accepted = (generator.random(40) < 0.5).astype(np.int64)
    keys = np.repeat(np.arange(4), 10)
    one = Evidence(scores, accepted, np.ones(40, np.int64), keys)
    flipped = np.where(keys == 0, 1 - accepted, accepted)
    other = Evidence(scores, flipped, np.ones(40, np.int64), keys)
    first, second = (cross_study("greedy", rows, SIGNALS[1], folds=4) for rows in (one, other))
    assert [found.after[0].predicted for found in (first, second)] == pytest.approx(
        [np.mean([_of_others(rows, key) for key in range(4)]) for rows in (one, other)]
    )


def _of_others(rows: Evidence, key: int) -> float:
    """Mean prediction for one prompt by a fit to the others."""
    mine, fit = rows.keys == key, LogisticFit(1)
    fit.fit_to(rows.scores[~mine], np.ones((30, 1), bool), rows.accepted[~mine][:, None] > 0)
    slope, intercepts = fit.served()
    return float((1 / (1 + np.exp(-(slope * rows.scores[mine] + intercepts)))).mean())


def test_more_folds_than_prompts_leave_one_prompt_out_each():
    """No fold is empty, and one prompt alone cannot be judged."""
    assert cross_study("greedy", recorded(300, prompts=3), folds=9).folds == 3
    with pytest.raises(CalibrationError, match="one prompt cannot be split"):
        cross_study("greedy", recorded(50, prompts=1))
    with pytest.raises(CalibrationError, match="at least 2"):
        cross_study("greedy", recorded(50), folds=1)


def test_only_the_logistic_form_mends_a_shift():
    """No bias term: a temperature squeezes a head that is 2 too sure and does not repair it (section 6)."""
    rows = recorded(factor=1.0, shift=2.0)
    scaled, logistic = (study("greedy", rows, signal) for signal in SIGNALS)
    assert mean_error(logistic.after) < 0.5 * mean_error(scaled.after)
    assert logistic.parameters["intercept"] == pytest.approx((-2.0,) * 3, abs=0.4)
    assert logistic.parameters["slope"] == pytest.approx((1.0,) * 3, abs=0.1)


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_study_is_a_function_of_its_rows(signal):
    """Rows in another order give the same temperatures, bit for bit, and the same reliability."""
    rows = recorded(600, prompts=20)
    order = np.random.default_rng(1).permutation(600)
    shuffled = Evidence(rows.scores[order], rows.accepted[order], rows.judged[order], rows.keys[order])
    folded = [cross_study("greedy", some, signal, seed=3).after for some in (rows, shuffled)]
    assert [(a.ece, a.floor) for a in folded[0]] == [(a.ece, a.floor) for a in folded[1]]
    one, other = study("greedy", rows, signal, seed=3), study("greedy", shuffled, signal, seed=3)
    assert one.parameters == other.parameters
    assert [a.ece for a in one.after] == [b.ece for b in other.after]
    assert study("greedy", rows, signal, seed=4).parameters != one.parameters


@pytest.mark.parametrize(
    ("signal", "kind"), [(SIGNALS[0], TemperatureScaledSignal), (SIGNALS[1], CalibratedSignal)]
)
def test_what_is_written_serves_the_signal(signal, kind, outcome_of_one):
    """The state goes through JSON into the signal, whose confidences are those that were judged."""
    rows = recorded(1200)
    found = study("greedy", rows, signal)
    state = json.loads(json.dumps(calibration_state({"greedy": found}, signal, "m", 3), allow_nan=False))
    made = kind(Limits(4, 3, 64, 16), torch.device("cpu"))
    made.import_state(state, "m")
    made.learn(outcome_of_one(sampled=False))
    scores = torch.tensor([[0.5, 1.5, -1.0]])
    served = made.confidences(scores, torch.tensor([0]))[0].tolist()
    z = np.array([0.5, 1.5, -1.0])
    if signal == "temperature-scaled":
        expected = 1 / (1 + np.exp(-z / np.array(found.parameters["temperature"])))
    else:
        slope, intercepts = found.parameters["slope"][0], np.array(found.parameters["intercept"])
        expected = 1 / (1 + np.exp(-(slope * z + intercepts)))
    assert served == pytest.approx(expected.tolist(), abs=1e-5)
    assert made.ready()[0]
    made.learn(outcome_of_one(sampled=True))
    assert not made.ready()[0]


@pytest.fixture
def outcome_of_one():
    """Return a builder of a step that drafted nothing: it tells the regime and teaches nothing."""

    def build(*, sampled: bool) -> StepOutcome:
        none, number = np.zeros(1, np.int64), np.array([int(sampled)])
        flags = np.array([True]), np.array([sampled])
        return StepOutcome(0, none, number, none, none, none, np.zeros((1, 3), np.float32), *flags, 1, None)

    return build


def test_positions_with_few_labels_are_named():
    """Twenty rows cannot fit three positions; they are said to be short, and figures are None where empty."""
    rows = recorded(20, prompts=5)
    found = study("greedy", rows)
    assert found.short
    plain = json.loads(json.dumps(found.as_dict()))
    assert plain["fitted"]["prompts"] + plain["held_out"]["prompts"] == 5
    assert [item["position"] for item in plain["positions"]] == [1, 2, 3]
    assert set(plain["positions"][0]) == {"position", "temperature", "labels", "before", "after"}
    assert plain["folds"] == 1


def test_other_signals_have_nothing_to_fit():
    """The names that do are in the message."""
    with pytest.raises(
        CalibrationError, match=r"arrived: 'optimistic'; allowed: temperature-scaled, calibrated"
    ):
        study("greedy", recorded(50), "optimistic")


def test_a_batch_fit_stays_where_it_converged():
    """More passes change nothing, counts are those of one pass, and the fit is ready to serve."""
    rows = recorded(2000)
    position = np.arange(3)
    labelled = position < np.minimum(rows.accepted + 1, 3)[:, None]
    fit = LogisticFit(3)
    fit.fit_to(rows.scores, labelled, position < rows.accepted[:, None])
    slope, intercepts = fit.slope, fit.intercepts.copy()
    assert fit.positives.tolist() == rows.labels()[0].tolist()
    assert fit.negatives.tolist() == rows.labels()[1].tolist()
    assert fit.ready()[0]
    for row in fit.reliability():
        assert row["predicted"] == pytest.approx(row["observed"], abs=0.01)
    fit.fit_to(rows.scores, labelled, position < rows.accepted[:, None])
    assert fit.slope == pytest.approx(slope, abs=1e-4)
    assert fit.intercepts == pytest.approx(intercepts, abs=1e-3)


@pytest.mark.parametrize("score", [np.nan, np.inf, -np.inf])
def test_absurd_scores_give_finite_parameters(score):
    """A broken head is fitted around, not spread."""
    rows = recorded(300)
    scores = rows.scores.copy()
    scores[::3, 1] = score
    broken = Evidence(scores, rows.accepted, rows.judged, rows.keys)
    for signal in SIGNALS:
        found = study("greedy", broken, signal)
        assert all(np.isfinite(values).all() for values in found.parameters.values())
        json.dumps(found.as_dict(), allow_nan=False)
