"""Sequential temperature scaling as a signal: cold start, regimes, files, and M2 and M9 of the maths."""

from __future__ import annotations

import math

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from adaverify_contracts import CalibrationError, Limits
from adaverify_verification import temperature_fit
from adaverify_verification.calibration_file import load_state, save_state, signal_of
from adaverify_verification.calibration_offline import fit_temperatures, survivals
from adaverify_verification.reliability import assess
from adaverify_verification.signals import TemperatureScaledSignal
from adaverify_verification.signals.temperature_scaled import ROWS_PER_REQUEST

LIMITS = Limits(8, 4, 256, 16)
CPU = torch.device("cpu")
ONES = [1.0] * 4


def make(*temperatures: float, limits: Limits = LIMITS) -> TemperatureScaledSignal:
    signal = TemperatureScaledSignal(limits, CPU)
    if temperatures:
        signal.import_state(list(temperatures), "m")
    return signal


def logit(p: float) -> float:
    return math.log(p / (1 - p))


def confidences(signal: TemperatureScaledSignal, *probabilities: float, slot: int = 0) -> torch.Tensor:
    """Confidences for the scores whose sigmoids these are."""
    return signal.confidences(torch.tensor([[logit(p) for p in probabilities]]), torch.tensor([slot]))[0]


def sharpen(signal, steps, outcome, *, factor=(1.0, 2.0, 2.0, 2.0), rows=8, seed=0, **fixed) -> None:
    """Feed steps whose scores are the true logits times a factor a position."""
    generator = np.random.default_rng(seed)
    for step in range(steps):
        logits = generator.normal(0.7, 1.2, (rows, 4))
        hits = generator.random((rows, 4)) < 1 / (1 + np.exp(-logits))
        accepted = np.cumprod(hits, axis=1).sum(axis=1).tolist()
        scores = logits * np.array(factor)
        signal.learn(outcome(accepted, scores=scores, generations=step // 32, **fixed))


def test_m9_temperatures_change_the_order_of_requests():
    """M9: A has 0.62, B 0.80 x 0.80 = 0.64 and goes first; with T_2 = 2, B has 0.5333 and A goes first."""
    two = Limits(8, 2, 256, 16)
    plain, scaled = make(1.0, 1.0, limits=two), make(1.0, 2.0, limits=two)
    assert float(confidences(plain, 0.80, 0.80).prod()) == pytest.approx(0.64, abs=1e-6)
    assert float(confidences(scaled, 0.80, 0.80).prod()) == pytest.approx(0.5333, abs=1e-4)
    a = float(confidences(scaled, 0.62, 0.5)[0])
    assert a == pytest.approx(0.62, abs=1e-6)
    assert float(confidences(plain, 0.80, 0.80).prod()) > a > float(confidences(scaled, 0.80, 0.80).prod())


def test_m2_survivals_scaled_by_themselves_rise_and_products_of_conditionals_do_not():
    """M2: survivals 0.6 and 0.54 with T = (2, 0.5) become 0.5505 and 0.5795; through c_k they cannot rise."""
    alone = [1 / (1 + math.exp(-logit(a) / t)) for a, t in ((0.6, 2.0), (0.54, 0.5))]
    assert alone == pytest.approx([0.5505, 0.5795], abs=1e-4)
    assert alone[1] > alone[0]
    product = confidences(make(2.0, 0.5, limits=Limits(8, 2, 256, 16)), 0.6, 0.9).cumprod(0)
    assert product[1] < product[0]


@hypothesis.given(
    st.lists(st.lists(st.floats(-60, 60), min_size=3, max_size=3), min_size=1, max_size=6),
    st.lists(st.floats(0.01, 100), min_size=3, max_size=3),
)
@hypothesis.settings(max_examples=100, deadline=None)
def test_survivals_never_rise_whatever_the_temperatures(scores, temperatures):
    """A later position is never surer than an earlier one, so admitted drafts stay a prefix."""
    found = survivals(np.array(scores), np.array(temperatures))
    assert (np.diff(found, axis=1) <= 0).all() and (found >= 0).all() and (found <= 1).all()


@hypothesis.given(
    st.lists(
        st.tuples(st.lists(st.floats(-8, 8), min_size=2, max_size=2), st.integers(0, 2)),
        min_size=1,
        max_size=30,
    ),
    st.randoms(),
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_the_fit_is_a_function_of_the_rows_counted(rows, shuffler):
    """The same rows in another order give the same bits, so ranks agree; and no fit is worse than T = 1."""
    scores, accepted = np.array([s for s, _ in rows]), np.array([a for _, a in rows])
    found = fit_temperatures(scores, accepted)
    order = list(range(len(rows)))
    shuffler.shuffle(order)
    assert found.tolist() == fit_temperatures(scores[order], accepted[order]).tolist()
    assert ((found >= 0.2 - 1e-12) & (found <= 5 + 1e-12)).all()


def test_nothing_drives_a_trim_before_every_position_has_both_kinds(outcome):
    """A cold start: identity and not ready, the reason naming the position and its counts."""
    signal = make()
    assert signal.temperatures() == {"greedy": ONES, "sampled": ONES}
    for _ in range(10):
        signal.learn(outcome([4, 0, 1, 2]))
    ready, reason = signal.ready()
    assert not ready and "position 4: 10 accepted and 0 rejected labels, needs 8 of each" in reason
    assert confidences(signal, 0.8, 0.8, 0.8, 0.8).tolist() == pytest.approx([0.8] * 4)
    for _ in range(8):
        signal.learn(outcome([3, 4, 0, 1]))
    ready, reason = signal.ready()
    assert ready and reason.startswith("greedy: temperatures fitted to ")


def test_many_labels_of_one_kind_are_evidence_too(outcome):
    """A drafter that is always right needs no rejections: after 128 labels a position it is known."""
    signal = make()
    for _ in range(31):
        signal.learn(outcome([4] * 4))
    assert not signal.ready()[0]
    signal.learn(outcome([4] * 4))
    assert signal.ready()[0]
    assert signal.temperatures()["greedy"] == ONES


def test_positions_that_are_never_reached_do_not_hold_it_up_for_ever(outcome, monkeypatch):
    """With the buffer full the fit is made, and what was never reached keeps T = 1, said so."""
    monkeypatch.setattr(temperature_fit, "MOST_ROWS", 200)
    signal = make()
    for step in range(40):
        signal.learn(outcome([0, 1, 0, 2, 1, 0, 2, 1], drafted=2, generations=step))
    ready, reason = signal.ready()
    assert ready and "position 3: 0 accepted and 0 rejected" in reason and "T = 1 stays" in reason
    assert signal.temperatures()["greedy"][2:] == [1.0, 1.0]


def test_it_learns_temperatures_that_undo_sharp_scores(outcome):
    """Scores sharpened by 2 from position 2 on are answered with T near (1, 2, 2, 2), and the error falls."""
    signal = make()
    sharpen(signal, 400, outcome)
    found = signal.temperatures()["greedy"]
    assert found[0] == pytest.approx(1.0, rel=0.25)
    assert all(1.2 < value < 4.0 for value in found[1:])
    generator = np.random.default_rng(9)
    logits = generator.normal(0.7, 1.2, (4000, 4))
    accepted = np.cumprod(generator.random(logits.shape) < 1 / (1 + np.exp(-logits)), axis=1).sum(axis=1)
    scores, judged = logits * np.array([1.0, 2.0, 2.0, 2.0]), np.full(4000, 4)
    raw, scaled = (assess(survivals(scores, np.array(t)), accepted, judged) for t in (ONES, found))
    assert all(after.ece < before.ece for before, after in zip(raw[1:], scaled[1:], strict=True))
    assert signal.temperatures()["sampled"] == ONES
    assert "greedy: temperatures fitted to 1664 fully verified drafts" in signal.ready()[1]


def test_trimmed_steps_teach_nothing(outcome):
    """Which rows a trimmed step verified depended on their scores (maths section 6, M11)."""
    taught, control = make(), make()
    for signal in (taught, control):
        sharpen(signal, 20, outcome)
    for _ in range(50):
        taught.learn(outcome([0, 0], admitted=[4, 1]))
    assert taught.export_state("m") == control.export_state("m")
    assert taught.reliability() == control.reliability()


def test_requests_that_must_not_teach_do_not(outcome):
    """`learn` False, and drafts behind an accepted end token (judged)."""
    signal = make()
    for _ in range(40):
        signal.learn(outcome([0, 4], learn=False))
    assert all(row["labels"] == 0 for row in signal.reliability()["greedy"])


def test_one_request_is_bounded(outcome):
    """A text of thousands of steps gives 256 rows; its slot's next holder gives its own."""
    signal = make()
    for _ in range(ROWS_PER_REQUEST + 50):
        signal.learn(outcome([2]))
    labels = signal.reliability()["greedy"][0]["labels"]
    assert labels == ROWS_PER_REQUEST
    signal.learn(outcome([2], generations=1))
    assert signal.reliability()["greedy"][0]["labels"] == labels + 1


def test_given_temperatures_are_ready_and_stay(outcome):
    """A file ends the cold start at once; labels then only tell how it fares."""
    signal = make(0.5, 1.0, 2.0, 4.0)
    assert signal.ready() == (True, "greedy: temperatures were given; sampled: temperatures were given")
    found = confidences(signal, *[0.8] * 4).tolist()
    assert found == pytest.approx([1 / (1 + math.exp(-logit(0.8) / t)) for t in (0.5, 1.0, 2.0, 4.0)])
    sharpen(signal, 100, outcome)
    assert signal.temperatures()["greedy"] == [0.5, 1.0, 2.0, 4.0]
    assert signal.reliability()["greedy"][0]["labels"] == 800


def test_regimes_are_apart(outcome):
    """Temperatures of greedy requests leave sampled ones cold; the first step of a request has neither's."""
    signal = make()
    signal.import_state({"greedy": [2.0] * 4}, "m")
    signal.learn(outcome([1, 1], sampled=[False, True]))
    ready, reason = signal.ready()
    assert not ready and reason.startswith("sampled: position 1")
    assert confidences(signal, *[0.8] * 4, slot=0).tolist() == pytest.approx([2 / 3] * 4)
    assert confidences(signal, *[0.8] * 4, slot=1).tolist() == pytest.approx([0.8] * 4)
    assert confidences(signal, *[0.8] * 4, slot=5).tolist() == pytest.approx([2 / 3] * 4)
    signal.import_state({"sampled": [0.5] * 4}, "m")
    assert signal.temperatures() == {"greedy": [2.0] * 4, "sampled": [0.5] * 4}
    assert confidences(signal, *[0.8] * 4, slot=5).tolist() == pytest.approx([0.8] * 4)


def test_what_was_learnt_outlives_the_process(outcome, tmp_path):
    """The file names its signal and setup; the next process starts ready with the same temperatures."""
    first = make()
    sharpen(first, 60, outcome)
    path = tmp_path / "calibration.json"
    save_state(path, first.export_state("target a, drafter b"))
    state = load_state(path)
    assert signal_of(state, "other") == "temperature-scaled"
    assert state["learnt"]["sampled"] is None
    second = make()
    second.import_state(state, "target a, drafter b")
    assert second.temperatures() == first.temperatures()
    assert second.ready()[0]
    second.learn(outcome([1], sampled=True))
    assert not second.ready()[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fingerprint": "n"}, "fingerprint: saved 'n', here 'm'"),
        ({"draft_tokens": 5}, "draft_tokens: saved 5, here 4"),
        ({"signal": "calibrated"}, "signal: saved"),
        ({"learnt": {"greedy": {"temperatures": [1.0] * 3}}}, "3 temperatures"),
        ({"learnt": {"greedy": {"temperatures": [1.0, 1.0, 1.0, -1.0]}}}, "position 4"),
        ({"learnt": {"greedy": [1.0] * 4}}, "malformed"),
        ({"learnt": 3}, "malformed"),
    ],
)
def test_foreign_and_damaged_files_are_refused(change, words):
    """Nothing is changed then."""
    signal = make(2.0, 2.0, 2.0, 2.0)
    state = signal.export_state("m") | change
    with pytest.raises(CalibrationError, match=words):
        signal.import_state(state, "m")
    assert signal.temperatures()["greedy"] == [2.0] * 4


def test_tables_keep_their_addresses(outcome):
    """Learning rewrites static tensors in place: a captured graph sees the new temperatures."""
    signal = make()
    addresses = signal._inverse.data_ptr(), signal._regime_of_slot.data_ptr()
    before = confidences(signal, *[0.9] * 4).clone()
    sharpen(signal, 60, outcome)
    assert (signal._inverse.data_ptr(), signal._regime_of_slot.data_ptr()) == addresses
    assert not torch.equal(confidences(signal, *[0.9] * 4), before)
