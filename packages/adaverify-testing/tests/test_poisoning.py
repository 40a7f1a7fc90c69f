"""Poison shows every element that was not written."""

import pytest
import torch

from adaverify_testing import is_poisoned, poison

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_element_is_poisoned_in_place_and_shows_until_written(dtype):
    tensor = torch.zeros(2, 3, dtype=torch.float32).to(dtype)
    address = tensor.data_ptr()
    assert poison(tensor) is tensor
    assert tensor.data_ptr() == address
    assert is_poisoned(tensor).all()
    tensor[1, 2] = 0
    assert is_poisoned(tensor).tolist() == [[True] * 3, [True, True, False]]


def test_integers_are_no_lengths_or_ids():
    assert poison(torch.zeros(1, dtype=torch.int32)).item() == -1515870811
    assert poison(torch.zeros(1, dtype=torch.int64)).item() < -(2**62)
    assert poison(torch.zeros(1, dtype=torch.uint8)).item() == 0xA5


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.float8_e4m3fn], ids=str)
def test_only_the_view_is_touched(dtype):
    whole = torch.zeros(4, 4).to(dtype)
    poison(whole[1:3, ::2])
    shown = is_poisoned(whole)
    assert int(shown.sum()) == 4
    assert shown[1:3, ::2].all()


def test_empty_tensors_are_fine():
    assert is_poisoned(poison(torch.empty(0, 3))).shape == (0, 3)
