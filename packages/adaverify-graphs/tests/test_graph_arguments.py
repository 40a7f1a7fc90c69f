"""Wrong types given to ladders, keys and caches: typed errors, and NaN is no limit."""

import numpy as np
import pytest

from adaverify_contracts import GraphError, LayoutError, Limits
from adaverify_graphs import EagerBackend, GraphCache, batch_key, choose_ladder, decode_flags

LIMITS = Limits(max_requests=4, draft_tokens=3, max_model_len=64, page_size=16)
NAN = float("nan")


@pytest.mark.parametrize("limits", [None, "4", 4, {}])
def test_limits_are_limits(limits):
    """They ended in AttributeError."""
    for call in (lambda: choose_ladder(limits), lambda: GraphCache(EagerBackend(), limits)):
        with pytest.raises(GraphError, match="no Limits") as caught:
            call()
        assert caught.value.remedy


@pytest.mark.parametrize(
    "arguments",
    [
        *({name: value} for name in ("max_graphs", "bytes_limit") for value in (NAN, 2.5, "4", True, -1)),
        {"bytes_limit": 8, "bytes_of": 3},
        {"expected": [4, 8]},
        {"expected": {4.5: 1.0}},
        {"expected": {"4": 1.0}},
        {"expected": {4: "often"}},
        {"expected": {4: NAN}},
    ],
)
def test_a_ladder_of_nonsense_is_refused(arguments):
    """NaN compares as no limit at all, and was taken for one."""
    with pytest.raises(GraphError) as caught:
        choose_ladder(LIMITS, **{"bytes_of": lambda tier: tier, **arguments})
    assert caught.value.remedy


@pytest.mark.parametrize("lengths", [[NAN], [1.5], ["3"], None, "3", 3, [None]])
def test_a_batch_of_what_is_no_length_is_refused(lengths):
    """``int`` of NaN raised ValueError, and 1.5 was a 1."""
    with pytest.raises(LayoutError) as caught:
        batch_key(lengths, [True], 4, max_query_len=4)
    assert caught.value.remedy
    with pytest.raises(LayoutError):
        decode_flags(lengths, [3])
    assert batch_key(np.array([3]), np.array([True]), 4, max_query_len=4).tokens == 3


@pytest.mark.parametrize(
    ("name", "value"), [("backend", None), ("backend", "cuda"), ("mode", "never"), ("mode", None)]
)
def test_a_cache_of_the_wrong_parts_is_refused(name, value):
    """``GraphCache(None)`` was built, and failed at the first capture."""
    parts = {"backend": EagerBackend(), "limits": LIMITS, name: value}
    with pytest.raises(GraphError) as caught:
        GraphCache(parts.pop("backend"), parts.pop("limits"), **parts)
    assert caught.value.remedy


@pytest.mark.parametrize("limit", [NAN, -1, "many", 1.5])
def test_a_cache_of_no_limit_in_bytes_is_refused(limit):
    """As for the ladder."""
    with pytest.raises(GraphError):
        GraphCache(EagerBackend(), LIMITS, bytes_limit=limit)
