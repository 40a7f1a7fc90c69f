"""Acceptance so far as a signal: rates, shrinkage, isolation of slots and regimes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adaverify_contracts import CalibrationError, Limits
from adaverify_verification.signals import AcceptanceHistorySignal
from adaverify_verification.signals.acceptance_history import PRIOR

LIMITS = Limits(8, 4, 256, 16)
CPU = torch.device("cpu")


def make() -> AcceptanceHistorySignal:
    return AcceptanceHistorySignal(LIMITS, CPU)


def values(signal: AcceptanceHistorySignal, slot: int) -> list[float]:
    return signal.confidences(torch.full((1, 4), float("nan")), torch.tensor([slot]))[0].tolist()


def test_starts_at_the_prior():
    """Nothing known: every slot has the prior, whatever the scores."""
    signal = make()
    assert values(signal, 3) == pytest.approx([PRIOR] * 4)
    assert not signal.ready()[0]


def test_rates_per_position(outcome):
    """Each position converges to its own conditional acceptance."""
    signal = make()
    generator = np.random.default_rng(0)
    rates = np.array([0.9, 0.7, 0.5, 0.8])
    for _ in range(500):
        hits = generator.random((8, 4)) < rates
        signal.learn(outcome(np.cumprod(hits, axis=1).sum(axis=1).tolist()))
    assert signal.rates()[1] == pytest.approx(rates, abs=0.06)
    assert signal.ready() == (True, "greedy: fitted at every position")


def test_a_request_leans_on_its_own_history(outcome):
    """After ten steps a request that always fails and one that never does are far apart."""
    signal = make()
    for _ in range(10):
        signal.learn(outcome([4, 0]))
    assert values(signal, 0)[0] > 0.8 > 0.45 > values(signal, 1)[0]
    assert values(signal, 0)[0] < 1.0


def test_fault_recycled_slot_has_fresh_state(outcome):
    """After forget, and for a new generation without it, the predecessor is gone (vllm #47930, #48459)."""
    signal = make()
    for _ in range(20):
        signal.learn(outcome([0], slots=[4], generations=1))
    assert values(signal, 4)[0] < 0.3
    signal.forget(4)
    assert values(signal, 4) == pytest.approx([PRIOR] * 4)
    signal.learn(outcome([0], slots=[4], generations=1))
    assert values(signal, 4) == pytest.approx([PRIOR] * 4)
    # Slot 5 never had a holder; slot 6 changes holder without a forget.
    signal.learn(outcome([0], slots=[6], generations=1))
    signal.learn(outcome([4, 4, 4], slots=[4, 5, 6], generations=2))
    assert values(signal, 4) == values(signal, 5) == values(signal, 6)


def test_fault_target_only_transforms_do_not_teach(outcome):
    """Rejections of an excluded request change no rate (vllm #57533)."""
    signal = make()
    signal.learn(outcome([2, 3]))
    before = signal.rates().copy()
    for _ in range(100):
        signal.learn(outcome([0], slots=[6], learn=False))
    assert (signal.rates() == before).all()


def test_fault_regimes_do_not_cross(outcome):
    """Sampled rejections leave the greedy rates alone (ds4 #951)."""
    signal = make()
    for _ in range(100):
        signal.learn(outcome([4, 0], sampled=[False, True]))
    prior, greedy, sampled = signal.rates()[:, 0]
    assert greedy > 0.9 and sampled < 0.4 and prior == pytest.approx(PRIOR)


def test_fault_rate_is_per_offered_not_per_cap(outcome):
    """Cap 7, offered 2, accepted 2 is an acceptance of 100 %, not 28.6 % (lucebox #496)."""
    signal = AcceptanceHistorySignal(Limits(2, 7, 64, 16), CPU)
    for _ in range(200):
        signal.learn(outcome([2], admitted=2, draft_tokens=7))
    assert min(signal.rates()[1][:2]) > 0.95
    assert signal._labels[1][2:].sum() == 0


def test_state_outlives_the_process(outcome):
    """Global rates travel, requests do not; damage and other setups are refused without a change."""
    first, second = make(), make()
    for _ in range(70):
        first.learn(outcome([3, 1, 4]))
    state = first.export_state("m")
    second.import_state(state, "m")
    assert (second.rates() == first.rates()).all()
    assert second.ready()[0]
    with pytest.raises(CalibrationError, match="fingerprint"):
        second.import_state(state, "n")
    for damaged in ({"labels": [[0.0] * 4] * 3}, {"accepted": None}, {"positives": [[-1] * 4] * 3}):
        with pytest.raises(CalibrationError, match="malformed"):
            second.import_state(state | {"learnt": state["learnt"] | damaged}, "m")
    assert (second.rates() == first.rates()).all()
