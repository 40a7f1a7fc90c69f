"""Wrong values never count as executed."""

import math

import pytest

from adaverify_capability import compared
from adaverify_contracts import KernelLevel


def test_equal_values_are_executed():
    report = compared("paged", "1.0", [1, 2, 3], [1.0, 2.0, 3.0])
    assert report.level is KernelLevel.EXECUTED
    assert "3 values" in report.reason


def test_wrong_values_are_only_imported_and_shown():
    """A wheel built for another torch imports and then misreads every tensor (design section 5)."""
    report = compared("paged", "1.0", [1, 2, 3], [1, 5, 3])
    assert report.level is KernelLevel.IMPORTED
    assert report.reason == "wrong values: expected [2.0] got [5.0] at [1] (1 of 3 wrong)"


@pytest.mark.parametrize("got", [[1, 2], [1, 2, 3, 4], []])
def test_a_wrong_count_is_wrong(got):
    report = compared("paged", "1.0", [1, 2, 3], got)
    assert report.level is KernelLevel.IMPORTED
    assert report.reason == f"wrong values: expected 3 of them, got {len(got)}"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_no_numbers_are_wrong_at_any_tolerance(bad):
    assert compared("paged", "", [1.0], [bad], tolerance=10.0).level is KernelLevel.IMPORTED


def test_the_tolerance_is_a_share_of_the_largest_value():
    assert compared("paged", "", [100.0, 1.0], [100.0, 1.9], tolerance=0.01).level is KernelLevel.EXECUTED
    assert compared("paged", "", [100.0, 1.0], [100.0, 2.1], tolerance=0.01).level is KernelLevel.IMPORTED


def test_many_wrong_values_are_cut_in_the_reason():
    report = compared("paged", "", [0.0] * 100, [1.0] * 100)
    assert "(100 of 100 wrong)" in report.reason
    assert len(report.reason) < 400
