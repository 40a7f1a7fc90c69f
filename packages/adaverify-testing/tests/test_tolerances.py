"""Values are compared by a table; integers exactly; a NaN is never close."""

import math

import pytest
import torch

from adaverify_contracts import LayoutError
from adaverify_testing import EXACT, TOLERANCES, assert_close, tolerance


@pytest.mark.parametrize("word", sorted(TOLERANCES))
def test_a_tolerance_holds_two_roundings_of_its_dtype_and_has_a_reason(word):
    dtype = getattr(torch, word)
    entry = tolerance(dtype)
    assert entry is tolerance(word)
    assert entry.reason
    values = torch.rand(500, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.5
    assert_close(values.to(dtype).double(), values, dtype=dtype if word != "float64" else "float32")


def test_a_coarser_dtype_never_has_a_finer_tolerance():
    order = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
    rtols = [tolerance(word).rtol for word in order]
    assert rtols == sorted(rtols)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool], ids=str)
def test_integers_are_exact(dtype):
    assert tolerance(dtype) is EXACT


def test_a_dtype_without_an_entry_is_refused():
    with pytest.raises(LayoutError, match="complex64"):
        tolerance(torch.complex64)


def test_one_wrong_integer_is_named_with_its_place():
    expected = torch.zeros(3, 4, dtype=torch.int32)
    actual = expected.clone()
    actual[2, 1] = 1
    with pytest.raises(AssertionError, match=r"1 of 12 elements differ; worst at \(2, 1\): 1, expected 0"):
        assert_close(actual, expected)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (math.nan, 1.0),
        (1.0, math.nan),
        (math.nan, math.nan),
        (math.inf, 1.0),
        (1.0, math.inf),
        (-math.inf, math.inf),
        (1.0001, 1.0),
    ],
)
def test_values_outside_the_tolerance_differ(actual, expected):
    with pytest.raises(AssertionError, match="1 of 2 elements differ"):
        assert_close(torch.tensor([2.0, actual]), torch.tensor([2.0, expected]))


def test_values_inside_the_tolerance_and_equal_infinities_pass():
    assert_close(torch.tensor([1.000005, -math.inf]), torch.tensor([1.0, -math.inf]))
    assert_close(torch.tensor([1.01], dtype=torch.bfloat16), torch.tensor([1.0]))
    assert_close(torch.zeros(0, 3), torch.zeros(0, 3))


@pytest.mark.parametrize(
    ("actual", "expected"),
    [(torch.zeros(2), torch.zeros(3)), (torch.zeros(1, 2), torch.zeros(2)), (torch.zeros(0), torch.zeros(1))],
)
def test_shapes_are_never_broadcast(actual, expected):
    with pytest.raises(AssertionError, match="shape"):
        assert_close(actual, expected)


def test_integers_of_another_dtype_differ():
    with pytest.raises(AssertionError, match=r"dtype torch\.int32, expected torch\.int64"):
        assert_close(torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64))
