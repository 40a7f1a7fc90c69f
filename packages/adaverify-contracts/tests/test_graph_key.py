"""A graph serves every batch it dominates and no other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaverify_contracts import GraphError, GraphKey

KEY = GraphKey(tokens=16, requests=4, max_query_len=8, table_width=10)
FIELDS = ("tokens", "requests", "max_query_len", "table_width")


def _changed(**changes):
    return GraphKey(**{field: getattr(KEY, field) + changes.get(field, 0) for field in FIELDS})


@pytest.mark.parametrize(
    ("changes", "served"),
    [
        ({}, True),
        ({"tokens": -1}, True),
        ({"requests": -1}, True),
        ({"max_query_len": -1}, True),
        ({"tokens": -16, "requests": -4, "max_query_len": -8}, True),
        ({"tokens": 1}, False),
        ({"requests": 1}, False),
        ({"max_query_len": 1}, False),
        ({"table_width": 1}, False),
        ({"table_width": -1}, False),
        ({"tokens": -8, "requests": 1}, False),
    ],
)
def test_dominance_is_at_least_in_sizes_and_equal_in_width(changes, served):
    """An exact request count in the key is never hit: vllm #36165."""
    assert KEY.dominates(_changed(**changes)) is served


def test_the_key_of_another_k_serves_by_all_three_sizes():
    """K = 6 up to 8 requests, 4 up to 32, 3 up to 128; a batch of 9 x 5: vllm #56136."""
    keys = [GraphKey(56, 8, 7, 1), GraphKey(160, 32, 5, 1), GraphKey(512, 128, 4, 1)]
    assert [key.dominates(GraphKey(45, 9, 5, 1)) for key in keys] == [False, True, False]


def test_keys_sort_by_tokens_first():
    keys = [GraphKey(16, 1, 1, 1), GraphKey(8, 9, 9, 9), GraphKey(8, 2, 9, 9)]
    assert sorted(keys) == [keys[2], keys[1], keys[0]]


_keys = st.builds(GraphKey, *(st.integers(0, 3) for _ in FIELDS))


@given(first=_keys, second=_keys, third=_keys)
def test_dominance_is_a_partial_order(first, second, third):
    assert first.dominates(first)
    if first.dominates(second) and second.dominates(first):
        assert first == second
    if first.dominates(second) and second.dominates(third):
        assert first.dominates(third)
    if first.dominates(second):
        assert first >= second, "the smallest dominating key comes first in order"


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("bad", [-1, 1.0, "4", True, None])
def test_sizes_are_ints_and_not_negative(field, bad):
    fields = dict.fromkeys(FIELDS, 1) | {field: bad}
    with pytest.raises(GraphError, match=rf"GraphKey\.{field}"):
        GraphKey(**fields)


def test_an_empty_batch_has_a_key():
    assert GraphKey(0, 0, 0, 0).dominates(GraphKey(0, 0, 0, 0))
