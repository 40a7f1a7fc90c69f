"""Sanitising, survivals and their 16-bit scores: NumPy and torch bit for bit."""

from __future__ import annotations

import math

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from adaverify_verification.quantise import SCORE_BITS, SCORE_MAX, quantise, sanitise, scores, survival

ANY_FLOAT = st.floats(width=32, allow_nan=True, allow_infinity=True)
MATRICES = hnp.arrays(np.float32, st.tuples(st.integers(0, 4), st.integers(0, 8)), elements=ANY_FLOAT)


def bits(values) -> list[int]:
    return np.ascontiguousarray(np.asarray(values)).view(np.uint32).ravel().tolist()


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_odd_values_are_defined(kind):
    """NaN counts as 0, infinities and out-of-range values clamp, -0.0 becomes 0.0."""
    values = np.array([math.nan, math.inf, -math.inf, -0.0, -1e-45, 1.0000001, 2.0, 0.25], np.float32)
    expected = np.array([0, 1, 0, 0, 0, 1, 1, 0.25], np.float32)
    assert bits(sanitise(kind(values))) == bits(expected)


@hypothesis.given(MATRICES)
@hypothesis.settings(max_examples=200, deadline=None)
def test_numpy_and_torch_agree_bit_for_bit(values):
    """Survivals agree in every bit and scores in every integer, whatever the input."""
    tensor = torch.from_numpy(values.copy())
    assert bits(survival(values)) == bits(survival(tensor))
    assert scores(values).tolist() == scores(tensor).tolist()
    assert scores(values).dtype == np.int32 and scores(tensor).dtype == torch.int32


@hypothesis.given(MATRICES)
@hypothesis.settings(max_examples=200, deadline=None)
def test_scores_never_rise_along_a_request(values):
    """Monotone integers are what makes every cut a set of prefixes (maths M1)."""
    q = scores(values)
    assert ((q >= 0) & (q <= SCORE_MAX)).all()
    assert (np.diff(q, axis=1) <= 0).all()


def test_product_is_float32_left_to_right():
    """The product rounds after every factor, in order: neither a double nor a tree gives these bits."""
    generator = np.random.default_rng(0)
    values = generator.random((200, 8), np.float32)
    expected = []
    for row in values:
        alive = np.float32(1)
        for factor in row:
            alive = np.float32(alive * factor)
            expected.append(alive)
    assert bits(survival(values)) == bits(np.array(expected, np.float32))
    assert bits(survival(values)) != bits(np.cumprod(values.astype(np.float64), axis=1).astype(np.float32))


def test_input_is_left_alone():
    """Survivals are a new array: a live confidence buffer is read by others too."""
    values = np.full((1, 3), 0.5, np.float32)
    tensor = torch.full((1, 3), 0.5)
    survival(values)
    survival(tensor)
    assert (values == 0.5).all() and bool((tensor == 0.5).all())


@pytest.mark.parametrize(("value", "expected"), [(0.0, 0), (1.0, 65535), (0.5, 32768), (1 / 65535, 1)])
def test_quantise_by_hand(value, expected):
    """floor(s x 65535 + 0.5) at values worked by hand."""
    assert int(quantise(np.array([value], np.float32))[0]) == expected
    assert int(quantise(torch.tensor([value], dtype=torch.float32))[0]) == expected
    assert SCORE_MAX == 2**SCORE_BITS - 1


def test_m9_calibration_changes_the_order_between_requests():
    """M9: B = 0.80 x 0.80 is ahead of A = 0.62; with T = 2 at position 2, B = 0.5333 and A is ahead."""
    logit = np.log(0.8 / 0.2)
    tempered = 1 / (1 + np.exp(-logit / 2))
    raw = scores(np.array([[0.62, 0.0], [0.80, 0.80]], np.float32))
    calibrated = scores(np.array([[0.62, 0.0], [0.80, tempered]], np.float32))
    assert raw[1, 1] > raw[0, 0]
    assert calibrated[1, 1] < raw[0, 0]
    assert calibrated[1, 1] == pytest.approx(0.5333 * SCORE_MAX, abs=3)


def test_m2_a_product_of_conditionals_stays_monotone():
    """M2: calibrating each survival by itself could rise; the product of calibrated conditionals cannot."""
    conditionals = np.array([[0.6, 0.999]], np.float32)
    per_survival = np.array([0.6, 0.7])
    assert per_survival[1] > per_survival[0]
    assert (np.diff(survival(conditionals)) <= 0).all()
