"""A grid refuses what cannot be measured, whatever its type."""

import pytest

from adaverify_contracts import CostTableError
from adaverify_verification import ProfileGrid

GOOD = {"requests": (1, 2), "contexts": (0, 16), "tokens": (1, 2), "draft_tokens": 3}
NO_AXIS = [
    None,
    "12",
    b"x",
    5,
    5.5,
    {},
    {1},
    (None,),
    ("a",),
    (1.5,),
    (True,),
    (float("nan"),),
    (1, None),
    (2, 1),
    (1, 1),
    (10**30,),
]
NO_COUNT = [None, "x", 5.5, float("nan"), True, [1], {}, -1, 10**30]


@pytest.mark.parametrize("axis", ["requests", "contexts", "tokens"])
@pytest.mark.parametrize("values", NO_AXIS, ids=str)
def test_an_axis_that_is_none_is_refused_by_name(axis, values):
    with pytest.raises(CostTableError, match=f"ProfileGrid.{axis} is not a rising axis") as caught:
        ProfileGrid(**{**GOOD, axis: values})
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["draft_tokens", "warmup", "repeats", "retries"])
@pytest.mark.parametrize("value", NO_COUNT, ids=str)
def test_a_count_that_is_none_is_refused_by_name(name, value):
    with pytest.raises(CostTableError, match=f"ProfileGrid.{name} is out of range") as caught:
        ProfileGrid(**{**GOOD, name: value})
    assert caught.value.remedy


@pytest.mark.parametrize("changes", [{"requests": ()}, {"contexts": ()}, {"padded": "no"}, {"padded": 1}])
def test_a_grid_of_nothing_and_a_padding_that_is_no_bool_are_refused(changes):
    with pytest.raises(CostTableError, match="measures nothing, or padded"):
        ProfileGrid(**{**GOOD, **changes})
