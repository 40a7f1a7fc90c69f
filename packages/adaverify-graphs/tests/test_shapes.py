"""Batches are classified by state, compared in tokens and captured with valid lengths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaverify_contracts import GraphError, GraphKey, LayoutError, Limits
from adaverify_graphs import batch_key, capture_query_lens, check_key, decode_flags, graph_keys


def test_prompt_chunk_of_full_decode_length_is_prefill():
    """K = 5 and a prompt chunk of 6 tokens: taken for a uniform decode, garbage (vllm #50532, #51865)."""
    flags = decode_flags(computed_tokens=[0, 40], prompt_tokens=[6, 40])
    assert flags == [False, True]
    assert batch_key([6, 6], flags, 7, max_query_len=6) is None
    assert batch_key([6, 6], [True, True], 7, max_query_len=6) == GraphKey(12, 2, 6, 7)


@pytest.mark.parametrize(
    ("computed", "prompt", "decodes"),
    [(0, 1, False), (5, 6, False), (6, 6, True), (7, 6, True), (0, 0, True)],
)
def test_a_request_decodes_once_its_prompt_is_computed(computed, prompt, decodes):
    assert decode_flags([computed], [prompt]) == [decodes]


def test_a_prefill_chunk_never_enters_a_decode_graph_whatever_its_length():
    for length in (0, 1, 2, 6):
        assert batch_key([6, length], [True, False], 7, max_query_len=6) is None


def test_only_the_sum_of_the_host_lengths_counts():
    """Device lengths [1, 2], host placeholder [2, 1]: the host split may differ (vllm #52783)."""
    first = batch_key([1, 2], [True, True], 4, max_query_len=3)
    second = batch_key(np.array([2, 1]), np.array([True, True]), 4, max_query_len=3)
    assert first == second == GraphKey(3, 2, 3, 4)


def test_requests_without_drafts_or_tokens_and_empty_batches_are_ordinary():
    assert batch_key([0, 1, 4], [True] * 3, 4, max_query_len=4) == GraphKey(5, 3, 4, 4)
    assert batch_key([], [], 4, max_query_len=4) == GraphKey(0, 0, 4, 4)


@pytest.mark.parametrize(
    ("lengths", "flags"), [([5], [True]), ([-1], [True]), ([1, 1], [True]), ([], [True])]
)
def test_lengths_that_contradict_the_bound_or_the_flags_are_refused(lengths, flags):
    with pytest.raises(LayoutError):
        batch_key(lengths, flags, 4, max_query_len=4)


def test_capture_lengths_of_ten_tokens_over_four_requests_are_valid_decodes():
    """The dummy run assumed one query length: vllm #32645."""
    assert capture_query_lens(10, 4, draft_tokens=5) == (3, 3, 2, 2)


@given(requests=st.integers(1, 40), drafts=st.integers(0, 9), data=st.data())
def test_capture_lengths_are_each_within_reach_and_sum_to_the_tokens(requests, drafts, data):
    tokens = data.draw(st.integers(requests, requests * (drafts + 1)))
    lengths = capture_query_lens(tokens, requests, drafts)
    assert len(lengths) == requests
    assert sum(lengths) == tokens
    assert min(lengths) >= 1
    assert max(lengths) <= drafts + 1


@pytest.mark.parametrize(("tokens", "requests"), [(3, 4), (25, 4), (1, 0), (0, 1), (-1, 1), (0, -1)])
def test_tokens_that_no_decode_lengths_give_are_refused_with_the_range(tokens, requests):
    with pytest.raises(GraphError) as caught:
        capture_query_lens(tokens, requests, draft_tokens=5)
    assert caught.value.arrived == {"tokens": tokens, "requests": requests, "draft_tokens": 5}


def test_an_empty_capture_has_no_lengths():
    assert capture_query_lens(0, 0, draft_tokens=5) == ()


def test_keys_of_tiers_hold_as_many_requests_as_tokens_allow(limits):
    keys = graph_keys([1, 4, 9, 32], limits)
    assert [key.requests for key in keys] == [1, 4, 8, 8]
    assert {key.max_query_len for key in keys} == {4}
    assert {key.table_width for key in keys} == {limits.table_width}
    for key in keys:
        capture_query_lens(key.tokens, key.requests, limits.draft_tokens)


@pytest.mark.parametrize("tier", [0, 33, -4])
def test_a_tier_that_is_no_decode_size_is_refused(limits, tier):
    with pytest.raises(GraphError, match=r"1 \.\. 32"):
        graph_keys([tier], limits)


def test_a_graph_of_more_requests_than_the_buffers_hold_is_refused_when_planned():
    """At most 6 requests and a graph of 8, buffers sized for 6: vllm-ascend #16168."""
    limits = Limits(max_requests=6, draft_tokens=3, max_model_len=100, page_size=16)
    with pytest.raises(GraphError, match="requests") as caught:
        check_key(GraphKey(8, 8, 4, limits.table_width), limits)
    assert (caught.value.arrived, caught.value.allowed) == (8, "1 .. 6")


@pytest.mark.parametrize(
    "change", [{"tokens": 33}, {"tokens": 0}, {"max_query_len": 5}, {"table_width": 6}, {"requests": 2}]
)
def test_a_key_beyond_the_limits_is_refused(limits, change):
    fields = {"tokens": 12, "requests": 4, "max_query_len": 4, "table_width": limits.table_width, **change}
    with pytest.raises(GraphError):
        check_key(GraphKey(**fields), limits)
