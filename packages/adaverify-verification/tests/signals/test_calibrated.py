"""The online fit as a signal: labels, regimes, isolation, and public faults of faults.md section 2."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adaverify_contracts import CalibrationError, Limits
from adaverify_verification.calibration_file import load_state, save_state
from adaverify_verification.signals import CalibratedSignal
from adaverify_verification.signals.calibrated import LABELS_PER_SLOT
from adaverify_verification.signals.slots import GREEDY, SAMPLED

LIMITS = Limits(8, 4, 256, 16)
CPU = torch.device("cpu")
PRIOR = 1 / (1 + np.exp(-1.5))


def make() -> CalibratedSignal:
    return CalibratedSignal(LIMITS, CPU)


def values(signal: CalibratedSignal, slot: int = 0, score: float = 0.0) -> list[float]:
    return signal.confidences(torch.full((1, 4), score), torch.tensor([slot]))[0].tolist()


def exported(signal: CalibratedSignal) -> dict:
    return signal.export_state("model")["learnt"]


def test_starts_from_the_prior_and_not_ready():
    """Slope 0 and intercept 1.5 whatever the score; verify everything until fitted."""
    signal = make()
    assert values(signal, score=5.0) == pytest.approx([PRIOR] * 4)
    ready, reason = signal.ready()
    assert not ready and "0 of 16 labelled steps" in reason


def test_recovers_the_law_that_made_the_labels(simulate):
    """After 400 steps of 8 requests slope and intercepts are near the truth, and the signal is ready."""
    signal = make()
    simulate(signal, 400, slope=1.0, intercepts=(2.0, 1.0, 0.5, 0.5))
    assert signal.ready() == (True, "greedy: fitted at every position")
    for score in (-1.0, 0.0, 1.0):
        expected = 1 / (1 + np.exp(-(score + np.array([2.0, 1.0, 0.5, 0.5]))))
        assert values(signal, score=score) == pytest.approx(expected.tolist(), abs=0.06)


@pytest.mark.parametrize("rows", [1, 4, 8])
def test_leaves_warming_within_a_demo(simulate, rows):
    """Two hundred steps suffice even for one request."""
    signal = make()
    simulate(signal, 200, rows=rows)
    assert signal.ready()[0]


def test_follows_drift(simulate):
    """Acceptance that drops by two logits is tracked within 500 steps."""
    signal = make()
    simulate(signal, 300)
    simulate(signal, 500, intercepts=(0.0, -1.0, -1.5, -1.5), seed=1)
    expected = 1 / (1 + np.exp(-np.array([0.0, -1.0])))
    assert values(signal)[:2] == pytest.approx(expected.tolist(), abs=0.08)


def test_fault_target_only_transforms_do_not_teach(simulate, outcome):
    """100 rejections of a request with allowed ids leave every estimate unchanged (vllm #57533)."""
    taught, control = make(), make()
    for signal in (taught, control):
        simulate(signal, 40)
    for _ in range(100):
        taught.learn(outcome([0], slots=[7], learn=False))
    assert exported(taught) == exported(control)
    assert taught._fits[GREEDY]._window_steps == control._fits[GREEDY]._window_steps


def test_fault_influence_of_one_request_is_bounded(outcome):
    """One slot gives at most 64 labels (and the run that reached them) to a refit (vllm #57533)."""
    signal = CalibratedSignal(Limits(4, 8, 64, 16), CPU)
    for _ in range(15):
        signal.learn(outcome([8, 0], 8, draft_tokens=8, slots=[1, 2]))
    window = signal._fits[GREEDY]
    assert LABELS_PER_SLOT <= int((window.positives + window.negatives).sum()) - 15 < LABELS_PER_SLOT + 2 * 4
    # The slot that had its share still ends the window: one busy request must not stop the fit for ever.
    signal.learn(outcome([8], 8, draft_tokens=8, slots=[1]))
    assert signal._fits[GREEDY].refits == 1


def test_fault_censored_positions_carry_no_label(outcome):
    """K = 5, admitted 3, accepted 1 is exactly two labels, 1 yes and 2 no (vllm #52228)."""
    signal = CalibratedSignal(Limits(2, 5, 64, 16), CPU)
    signal.learn(outcome([1], admitted=3, draft_tokens=5))
    fit = signal._fits[GREEDY]
    assert fit.positives.tolist() == [1, 0, 0, 0, 0]
    assert fit.negatives.tolist() == [0, 1, 0, 0, 0]


def test_fault_full_accept_proves_only_at_least(outcome):
    """A full accept of 2 admitted drafts says nothing about position 3."""
    signal = make()
    signal.learn(outcome([2], admitted=2))
    assert signal._fits[GREEDY].positives.tolist() == [1, 1, 0, 0]
    assert signal._fits[GREEDY].negatives.tolist() == [0, 0, 0, 0]


def test_fault_negative_slope_never_inverts_the_ranking(simulate):
    """Scores that anti-correlate with acceptance are ignored, not turned round (vllm #52228)."""
    signal = make()
    simulate(signal, 300, slope=-1.0)
    assert signal._fits[GREEDY].slope == 0.0
    assert values(signal, score=2.0) == values(signal, score=-2.0)


def test_fault_same_counts_give_the_same_fit(simulate, outcome):
    """The fit is a pure function of the labels, whatever order requests were listed in (vllm #52228)."""
    one, other = make(), make()
    generator = np.random.default_rng(5)
    for _ in range(64):
        scores = generator.normal(0, 1, (6, 4)).astype(np.float32)
        accepted = generator.integers(0, 5, 6)
        order = generator.permutation(6)
        one.learn(outcome(accepted.tolist(), scores=scores))
        other.learn(outcome(accepted[order].tolist(), slots=order.tolist(), scores=scores[order]))
    assert exported(one) == exported(other)
    assert torch.equal(one._parameters, other._parameters)


def test_fault_miscalibrated_depth_is_corrected_per_position(outcome):
    """Position 4 predicted near 0.8 and observed at 0.4 is corrected there and not elsewhere.

    Reference: vllm #52053.
    """
    signal = make()
    generator = np.random.default_rng(0)
    for _ in range(600):
        hits = generator.random((8, 4)) < np.array([0.8, 0.8, 0.8, 0.4])
        signal.learn(outcome(np.cumprod(hits, axis=1).sum(axis=1).tolist()))
    assert values(signal) == pytest.approx([0.8, 0.8, 0.8, 0.4], abs=0.06)
    row = signal.reliability()["greedy"][3]
    assert row["position"] == 4 and row["labels"] > 500
    assert row["observed"] == pytest.approx(0.4, abs=0.06)


def test_fault_cold_position_is_shrunk_not_believed(outcome):
    """20 rejections at the last position do not make it hopeless; the reason names it (speed.llama.cpp)."""
    signal = make()
    for step in range(128):
        ready, reason = signal.ready()
        assert not ready and ("position 4: 0 accepted" in reason or step <= 16)
        signal.learn(outcome([1, 2, 0, 3 if step < 20 else 1], admitted=[4, 4, 4, 4 if step < 20 else 3]))
    assert signal._fits[GREEDY].negatives[3] == 20 and signal._fits[GREEDY].positives[3] == 0
    ready, reason = signal.ready()
    assert ready and "positions" in reason and "4" in reason and "shared intercept" in reason
    assert 0.2 < values(signal)[3] < 0.8


def test_fault_cold_start_verifies_everything(outcome):
    """Nothing drives a trim before 32 labels of each kind, 8 of each at position 1 (speed.llama.cpp)."""
    signal = make()
    for _ in range(31):
        signal.learn(outcome([4]))
    ready, reason = signal.ready()
    assert not ready and "0 rejected" in reason and "needs 32 of each" in reason


@pytest.mark.parametrize("accepted", [0, 4])
def test_fault_one_kind_of_label_ends_the_warm_up_too(outcome, accepted):
    """Trimming waited for labels that could not come; a drafter never (or always) right is known.

    Reference: speed.llama.cpp.
    """
    signal = make()
    for _ in range(300):
        signal.learn(outcome([accepted] * 8))
    assert signal.ready()[0]
    assert (values(signal)[0] > 0.95) == (accepted == 4) and (values(signal)[0] < 0.05) == (accepted == 0)


def test_fault_regimes_do_not_cross(simulate, outcome):
    """0.9 greedy and 0.6 sampled with equal scores are two fits; an unknown regime has the prior.

    Reference: ds4 #951, #913.
    """
    signal = make()
    generator = np.random.default_rng(1)
    for _ in range(400):
        hits = generator.random((8, 4)) < np.array([[0.9]] * 4 + [[0.6]] * 4)
        signal.learn(outcome(np.cumprod(hits, axis=1).sum(axis=1).tolist(), sampled=[False] * 4 + [True] * 4))
    assert values(signal, slot=0)[0] == pytest.approx(0.9, abs=0.04)
    assert values(signal, slot=7)[0] == pytest.approx(0.6, abs=0.06)
    signal.forget(7)
    assert values(signal, slot=7) == pytest.approx([PRIOR] * 4)


def test_ready_waits_for_every_regime_in_use(simulate, outcome):
    """One sampled request among fitted greedy ones: not ready until it is fitted or leaves."""
    signal = make()
    simulate(signal, 100)
    assert signal.ready()[0]
    signal.learn(outcome([2], slots=[3], generations=1, sampled=True))
    ready, reason = signal.ready()
    assert not ready and reason.startswith("sampled:") and "greedy" not in reason
    signal.forget(3)
    assert signal.ready()[0]
    assert signal._fits[SAMPLED].refits == 0


def test_ready_again_when_the_slot_falls_silent(simulate, outcome):
    """A request that ended without a forget holds the others up for eight steps and not for ever."""
    signal = make()
    simulate(signal, 100)
    signal.learn(outcome([2], slots=[7], generations=1, sampled=True))
    states = []
    for _ in range(9):
        signal.learn(outcome([2], slots=[0]))
        states.append(signal.ready()[0])
    assert states == [False] * 7 + [True] * 2


def test_fault_slot_successor_is_never_its_predecessor(outcome):
    """A recycled slot starts unknown, and a late outcome of its predecessor does not count.

    Reference: vllm #47930, #48459.
    """
    signal = make()
    signal.learn(outcome([1], slots=[2], generations=5, sampled=True))
    assert signal._book.regime[2] == SAMPLED
    signal.forget(2)
    signal.forget(2)
    signal.learn(outcome([1], slots=[2], generations=5, sampled=True))
    assert signal._book.regime[2] == 0
    signal.learn(outcome([1], slots=[2], generations=6))
    assert signal._book.regime[2] == GREEDY
    signal.learn(outcome([1], slots=[2], generations=5, sampled=True))
    assert signal._book.regime[2] == GREEDY


def test_parameters_keep_their_addresses(simulate):
    """Learning rewrites static tensors in place: a captured graph sees the new fit."""
    signal = make()
    scores, slots = torch.zeros(2, 4), torch.arange(2)
    before = signal.confidences(scores, slots).clone()
    addresses = signal._parameters.data_ptr(), signal._regime_of_slot.data_ptr()
    simulate(signal, 60)
    assert (signal._parameters.data_ptr(), signal._regime_of_slot.data_ptr()) == addresses
    assert not torch.equal(signal.confidences(scores, slots), before)


def test_what_was_learnt_outlives_the_process(simulate, tmp_path):
    """A file carries the fit to the next process, which is ready at once and continues alike.

    Reference: sparkinfer #920.
    """
    first = make()
    simulate(first, 96)
    path = tmp_path / "calibration.json"
    save_state(path, first.export_state("target a, drafter b"))
    second = make()
    second.import_state(load_state(path), "target a, drafter b")
    assert second.ready()[0] and exported(second) == exported(first)
    for signal in (first, second):
        simulate(signal, 64, seed=9)
    assert exported(second) == exported(first)
    assert [entry.name for entry in tmp_path.iterdir()] == ["calibration.json"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"fingerprint": "other"}, "fingerprint: saved 'other', here 'm'"),
        ({"draft_tokens": 5}, "draft_tokens: saved 5, here 4"),
        ({"signal": "acceptance-history"}, "signal: saved"),
        ({"format": 0}, "format: saved 0"),
        ({"learnt": []}, "malformed"),
        ({"learnt": {}}, "malformed"),
    ],
)
def test_foreign_calibration_is_refused(simulate, change, named):
    """Another fingerprint, K, signal or format is refused by name, and nothing is changed (FreeToken #71)."""
    signal = make()
    simulate(signal, 32)
    before = exported(signal)
    with pytest.raises(CalibrationError, match=named):
        signal.import_state(signal.export_state("m") | change, "m")
    assert exported(signal) == before


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("slope", -1.0),
        ("slope", float("nan")),
        ("intercepts", [1.0] * 3),
        ("intercepts", [float("inf")] * 4),
        ("positives", [-1, 0, 0, 0]),
        ("s_kk", [-0.5, 0, 0, 0]),
        ("s_wk", "text"),
    ],
)
def test_damaged_calibration_is_refused(simulate, field, value):
    """A value no fit could have is an error, and nothing is changed, not even the other regime."""
    signal = make()
    simulate(signal, 32)
    before = exported(signal)
    state = signal.export_state("m")
    state["learnt"]["sampled"][field] = value
    with pytest.raises(CalibrationError):
        signal.import_state(state, "m")
    assert exported(signal) == before
