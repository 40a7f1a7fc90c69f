"""Ladders: their sizes, their padding, and what capturing them takes."""

from __future__ import annotations

import pytest

from adaverify.bench.endtoend.ladders import captured_sizes, mean_padding, measure_capture

K = 7


def test_padding_by_hand():
    """Sizes 1 .. 4 into 2 and 4: one of padding at 1 and at 3, weighing 1 and 1/3 of 25/12."""
    assert mean_padding((2, 4), 4) == pytest.approx((1 + 1 / 3) / (25 / 12))


@pytest.mark.parametrize(("requests", "sizes"), [(2, (8, 16)), (64, tuple(range(16, 513, 16)))])
def test_a_ladder_to_capture_is_evenly_spaced(requests, sizes):
    assert captured_sizes(requests, K) == sizes


def test_capturing_names_what_it_took(ground):
    """Both levels over the same sizes; on a CPU no bytes are measured."""
    found = measure_capture(ground, 2)
    assert found["sizes"] == [8, 16]
    for name in ("fixed", "adaptive"):
        assert found[name]["graphs"] == 2
        assert 0 < found[name]["seconds_low"] <= found[name]["seconds"] <= found[name]["seconds_high"]
        assert all(value is None for figure, value in found[name].items() if "bytes" in figure)
    assert found["held_ratio"] is None


def test_ladders_of_a_case_are_of_its_own_batch(ground):
    """Those of the largest batch of the run were reported with every case."""
    ladders = measure_capture(ground, 2)["ladders"]
    assert [one["limit"] for one in ladders] == [8, 16]
    assert ladders[0]["even"] == [2, 4, 6, 8, 10, 12, 14, 16]
