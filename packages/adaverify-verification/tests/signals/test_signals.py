"""What all built-in signals share, and the two that learn nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from adaverify_contracts import CalibrationError, LayoutError, Limits, Seen, Signal
from adaverify_verification.signals import (
    ACCEPTANCE_HISTORY,
    CALIBRATED,
    DRAFTER,
    OPTIMISTIC,
    TEMPERATURE_SCALED,
    TemperatureScaledSignal,
    builtin_signals,
)

LIMITS = Limits(6, 4, 256, 16)
CPU = torch.device("cpu")
EVERY = pytest.mark.parametrize("descriptor", builtin_signals(), ids=lambda d: d.name)


def test_descriptors_declare_what_they_have_seen():
    """Names are what users type; none adds to what the drafter's own score has seen (maths section 5.5)."""
    assert [d.name for d in builtin_signals()] == [
        "calibrated",
        "temperature-scaled",
        "drafter",
        "acceptance-history",
        "optimistic",
    ]
    assert {d.seen for d in builtin_signals()} == {Seen.HISTORY}
    assert CALIBRATED.reads_scores and DRAFTER.reads_scores and TEMPERATURE_SCALED.reads_scores
    assert not ACCEPTANCE_HISTORY.reads_scores and not OPTIMISTIC.reads_scores


@EVERY
def test_confidences_are_probabilities_for_any_score(descriptor, outcome):
    """NaN, infinities and huge scores give values in [0, 1], before and after learning."""
    signal = descriptor.factory(LIMITS, CPU)
    assert isinstance(signal, Signal)
    scores = torch.tensor([[math.nan, math.inf, -math.inf, 1e30], [0.0, -0.0, -1e30, 50.0]])
    for _ in range(20):
        values = signal.confidences(scores, torch.tensor([0, 5]))
        assert values.dtype == torch.float32 and values.shape == (2, 4)
        assert bool(((values >= 0) & (values <= 1)).all())
        signal.learn(outcome([1, 4, 0], scores=np.array([[math.nan, math.inf, -math.inf, 1e30]] * 3)))


@EVERY
def test_padding_slots_are_masked_never_an_index(descriptor, outcome):
    """-1 and a slot past the end are answered like any row and reach no memory outside (vllm #50939)."""
    signal, fresh = (descriptor.factory(LIMITS, CPU) for _ in range(2))
    for _ in range(40):
        signal.learn(outcome([0] * 6))
    slots = torch.tensor([-1, 0, 6, 99])
    values, prior = (s.confidences(torch.zeros(4, 4), slots) for s in (signal, fresh))
    assert torch.equal(values[[0, 2, 3]], prior[[0, 2, 3]])
    if descriptor in (CALIBRATED, ACCEPTANCE_HISTORY):
        assert float(values[1, 0]) < 0.5


@pytest.mark.parametrize("descriptor", [CALIBRATED, ACCEPTANCE_HISTORY], ids=lambda d: d.name)
def test_outcomes_of_unknown_slots_are_reported(descriptor, outcome):
    """Slots past max_requests teach nothing, and the reason says so: no silent warm-up for ever."""
    signal = descriptor.factory(LIMITS, CPU)
    for _ in range(40):
        signal.learn(outcome([2, 1], slots=[6, 900]))
    ready, reason = signal.ready()
    assert not ready and "80 outcomes of slots outside 0 .. 5" in reason


@EVERY
def test_output_buffer_is_static(descriptor):
    """Repeated calls write one buffer: a captured graph reads the same address."""
    signal = descriptor.factory(LIMITS, CPU)
    first = signal.confidences(torch.zeros(6, 4), torch.arange(6))
    second = signal.confidences(torch.ones(2, 4), torch.arange(2))
    assert first.data_ptr() == second.data_ptr()


@EVERY
def test_confidences_read_no_device_value(descriptor):
    """The decode path runs on the meta device, where any host read of a value raises."""
    meta = torch.device("meta")
    signal = descriptor.factory(LIMITS, meta)
    slots = torch.zeros(3, dtype=torch.int64, device=meta)
    assert signal.confidences(torch.zeros(3, 4, device=meta), slots).shape == (3, 4)


@EVERY
def test_empty_steps_are_ordinary(descriptor, outcome):
    """No requests, nothing admitted, a slot nobody has: no exception, nothing learnt."""
    signal = descriptor.factory(LIMITS, CPU)
    before = signal.confidences(torch.zeros(6, 4), torch.arange(6)).clone()
    signal.learn(outcome([]))
    signal.learn(outcome([0, 0], admitted=0))
    signal.learn(outcome([1], slots=[77]))
    signal.forget(77)
    signal.forget(0)
    assert torch.equal(signal.confidences(torch.zeros(6, 4), torch.arange(6)), before)
    assert signal.confidences(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)).shape == (0, 4)


@EVERY
def test_no_draft_tokens(descriptor, outcome):
    """K = 0 is no speculation, not an error."""
    signal = descriptor.factory(Limits(2, 0, 64, 16), CPU)
    signal.learn(outcome([0, 0], admitted=0, draft_tokens=0))
    assert signal.confidences(torch.zeros(2, 0), torch.arange(2)).shape == (2, 0)
    assert isinstance(signal.ready()[0], bool)


@EVERY
@pytest.mark.parametrize(
    ("scores", "slots"),
    [
        (torch.zeros(2, 3), torch.arange(2)),
        (torch.zeros(7, 4), torch.arange(7)),
        (torch.zeros(2, 4, dtype=torch.float64), torch.arange(2)),
        (torch.zeros(2, 4), torch.arange(2).int()),
        (torch.zeros(2, 4), torch.arange(3)),
    ],
)
def test_misfits_are_refused(descriptor, scores, slots):
    """A wrong shape or dtype is an error that names K and the largest R."""
    with pytest.raises(LayoutError, match=r"float32 \[R, 4\].*R <= 6"):
        descriptor.factory(LIMITS, CPU).confidences(scores, slots)


def test_optimistic_is_one():
    """Every draft token survives, whatever the scores say."""
    signal = OPTIMISTIC.factory(LIMITS, CPU)
    assert bool((signal.confidences(torch.full((2, 4), -9.0), torch.arange(2)) == 1.0).all())
    assert signal.ready() == (True, "every draft token is taken to survive")


def test_drafter_is_the_sigmoid_of_the_score():
    """The score is read as a logit."""
    scores = torch.linspace(-4, 4, 8).view(2, 4)
    found = DRAFTER.factory(LIMITS, CPU).confidences(scores, torch.arange(2))
    assert torch.allclose(found, torch.sigmoid(scores))


def test_fault_per_position_temperatures_apply_before_the_product():
    """Temperatures are configuration, and a temperature above 1 pulls towards one half (DeepSpec #63)."""
    signal = TemperatureScaledSignal(LIMITS, CPU)
    signal.import_state([1.0, 1.2, 1.6, 2.0], "m")
    found = signal.confidences(torch.full((1, 4), math.log(4.0)), torch.arange(1))[0]
    expected = [1 / (1 + 4.0 ** (-1 / t)) for t in (1.0, 1.2, 1.6, 2.0)]
    assert found.tolist() == pytest.approx(expected, rel=1e-6)
    assert expected[3] == pytest.approx(0.6667, abs=1e-4)


@pytest.mark.parametrize("temperatures", [[1.0] * 5, [1.0] * 3])
def test_fault_calibration_of_another_length_is_refused(temperatures):
    """A calibration of length 5 for block 4 is refused with both numbers (sglang #31018)."""
    with pytest.raises(CalibrationError, match=f"{len(temperatures)} temperatures.*K = 4"):
        TemperatureScaledSignal(LIMITS, CPU).import_state(temperatures, "m")
