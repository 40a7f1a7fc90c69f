"""The one decision: which strategy a step uses and why."""

import pytest

from adaverify_contracts import NoStrategyError
from adaverify_runtime.decision import decide_strategy


def test_a_full_batch_takes_the_uniform_path(make):
    """Nothing trimmed and equal schedules: the host knows every length."""
    decision = decide_strategy(make.plan(uniform=8), "flat", "even")
    assert (decision.strategy, decision.uniform_query_len) == ("even", 8)
    assert "8" in decision.reason


@pytest.mark.parametrize("budget", [0, 1, 6, 7])
def test_a_single_request_takes_the_uniform_path_at_any_budget(make, budget):
    """One request has equal host and device boundaries, trimmed or not."""
    decision = decide_strategy(make.plan(requests=1, scheduled=7, budget=budget), "flat", "even")
    assert (decision.strategy, decision.uniform_query_len) == ("even", budget + 1)


def test_no_verified_draft_means_query_length_one(make):
    """B = 0 is uniform however many drafts were scheduled."""
    decision = decide_strategy(make.plan(budget=0), "flat", "even")
    assert (decision.strategy, decision.uniform_query_len) == ("even", 1)


@pytest.mark.parametrize(
    ("changes", "words"), [({"budget": 27}, "1 of 28"), ({"budget": 28}, "different numbers")]
)
def test_a_ragged_batch_takes_the_ragged_path(make, changes, words):
    """vllm #47808: a partial budget never takes a path made for the full one, one token less included."""
    decision = decide_strategy(make.plan(**changes), "flat", "even")
    assert (decision.strategy, decision.uniform_query_len) == ("flat", None)
    assert words in decision.reason


def test_without_a_uniform_strategy_the_ragged_one_serves_and_says_so(make):
    """The missing fast path is in the reason."""
    decision = decide_strategy(make.plan(uniform=8), "flat", None)
    assert decision.strategy == "flat"
    assert "no uniform strategy fits" in decision.reason


def test_a_ragged_batch_without_a_ragged_strategy_is_refused(make):
    """Never a silent fallback to a path that would misread the lengths; the refusal names both sizes.

    8 requests, K = 5, lengths that sum to 42 where equal blocks need 8 x 6 = 48 (sglang #39173,
    DeepSeek-v4.1-Flash-DGX-Sparks #6).
    """
    with pytest.raises(NoStrategyError, match="one query length only") as caught:
        decide_strategy(make.plan(requests=8, scheduled=40, budget=34), None, "even")
    assert "42 query tokens for 8 requests, 48 if all drafts were verified" in str(caught.value)


def test_an_empty_batch_is_ordinary(make):
    """R = 0 takes the ragged path, whose builder pads it whole."""
    decision = decide_strategy(make.plan(requests=0, scheduled=0), "flat", "even")
    assert decision.strategy == "flat"
    assert decision.reason == "no decode requests"
