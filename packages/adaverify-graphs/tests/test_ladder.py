"""The ladder pads least, keeps the uniform sizes and says what a limit took."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import GraphError, Limits
from adaverify_graphs import choose_ladder


def _limits(requests, drafts):
    return Limits(max_requests=requests, draft_tokens=drafts, max_model_len=64, page_size=16)


def _padding(tiers, weights):
    """Padding by the definition: each size runs at the smallest tier that holds it."""
    held = {size: weight for size, weight in weights.items() if size <= max(tiers)}
    total = sum(weight * (min(t for t in tiers if t >= size) - size) for size, weight in held.items())
    return total / sum(held.values()) if sum(held.values()) else 0.0


def test_without_limits_the_uniform_sizes_are_the_ladder():
    ladder = choose_ladder(_limits(4, 7))
    assert ladder.tiers == (8, 16, 24, 32)
    assert (ladder.uniform_kept, ladder.uniform_total, ladder.cuts) == (4, 4, ())


def test_the_ladder_ends_at_the_largest_decode_batch():
    """Concurrency 1 and K = 5: 1024 rows captured though no decode exceeds 6 (InferenceX #3068)."""
    assert choose_ladder(_limits(1, 5)).tiers == (6,)
    assert choose_ladder(_limits(1, 5), max_graphs=100).tiers == (1, 2, 3, 4, 5, 6)


def test_without_drafts_every_request_count_is_a_uniform_size():
    assert choose_ladder(_limits(5, 0)).tiers == (1, 2, 3, 4, 5)


def test_expected_sizes_between_the_uniform_ones_are_added():
    ladder = choose_ladder(_limits(3, 7), {5: 3.0, 8: 1.0, 19: 1.0})
    assert ladder.tiers == (5, 8, 16, 19, 24)
    assert ladder.expected_padding == 0.0


def test_a_graph_limit_spends_what_is_left_where_it_saves_most():
    ladder = choose_ladder(_limits(2, 7), {3: 10.0, 5: 1.0, 12: 2.0}, max_graphs=3)
    assert ladder.tiers == (3, 8, 16)
    assert ladder.expected_padding == pytest.approx((1 * 3 + 2 * 4) / 13)


def test_a_graph_limit_that_cuts_uniform_sizes_says_so_with_the_numbers():
    ladder = choose_ladder(_limits(256, 7), max_graphs=64)
    assert len(ladder.tiers) == 64
    assert ladder.tiers[-1] == 2048
    assert all(tier % 8 == 0 for tier in ladder.tiers)
    assert ladder.cuts == ("graph limit 64: 64 of 256 uniform sizes (multiples of 8) are kept",)


def test_sizes_that_would_starve_the_kv_cache_are_not_captured():
    """Tiers of 2176 and 6400 tokens: one left 0.94 of 5.12 GiB, the other ran out (vllm #54418)."""
    limits = _limits(800, 7)
    ladder = choose_ladder(limits, max_graphs=8, bytes_limit=2_000_000, bytes_of=lambda tier: 1000 * tier)
    assert max(ladder.tiers) <= 2000
    assert ladder.estimated_bytes <= 2_000_000
    assert "ends at 2000 and not at 6400 tokens" in ladder.cuts[0]
    assert "6400000 bytes" in ladder.cuts[0]


def test_when_nothing_fits_the_ladder_is_empty_and_says_why():
    ladder = choose_ladder(_limits(4, 3), bytes_limit=10, bytes_of=lambda tier: 100 * tier)
    assert ladder.tiers == ()
    assert ladder.tier_for(1) is None
    assert "nothing is captured" in ladder.cuts[0]
    assert "400" in ladder.cuts[0]


def test_zero_graphs_is_a_choice_and_is_said():
    ladder = choose_ladder(_limits(4, 3), max_graphs=0)
    assert ladder.tiers == ()
    assert ladder.cuts == ("graph limit 0: 0 of 4 uniform sizes (multiples of 4) are kept",)


def test_a_tier_is_looked_up_in_tokens():
    ladder = choose_ladder(_limits(4, 3))
    assert [ladder.tier_for(tokens) for tokens in (0, 1, 4, 5, 16, 17)] == [4, 4, 4, 8, 16, None]
    keys = ladder.keys(_limits(4, 3))
    assert [(key.tokens, key.requests) for key in keys] == [(4, 4), (8, 4), (12, 4), (16, 4)]


@pytest.mark.parametrize(
    "arguments",
    [
        {"expected": {0: 1.0}},
        {"expected": {17: 1.0}},
        {"expected": {4: -1.0}},
        {"expected": {4: float("nan")}},
        {"expected": {4: float("inf")}},
        {"max_graphs": -1},
        {"bytes_limit": -1, "bytes_of": lambda tier: 1},
        {"bytes_limit": 5},
    ],
)
def test_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(GraphError):
        choose_ladder(_limits(4, 3), **arguments)


_weights = st.dictionaries(st.integers(1, 12), st.integers(1, 9).map(float), min_size=1, max_size=8)


@settings(max_examples=40, deadline=None)
@given(weights=_weights, room=st.integers(0, 8))
def test_with_the_uniform_sizes_kept_no_choice_of_the_rest_pads_less(weights, room):
    ladder = choose_ladder(_limits(3, 3), weights, max_graphs=3 + room)
    uniform = {4, 8, 12}
    others = [size for size in range(1, 12) if size not in uniform]
    best = min(
        _padding(uniform | set(chosen), weights)
        for count in range(min(room, len(others)) + 1)
        for chosen in combinations(others, count)
    )
    assert uniform <= set(ladder.tiers)
    assert len(ladder.tiers) <= 3 + room
    assert _padding(ladder.tiers, weights) == pytest.approx(best, abs=1e-9)
    assert ladder.expected_padding == pytest.approx(best, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    weights=st.dictionaries(st.integers(1, 32), st.integers(1, 9).map(float), min_size=1),
    count=st.integers(1, 7),
)
def test_below_the_uniform_count_no_choice_of_uniform_sizes_pads_less(weights, count):
    ladder = choose_ladder(_limits(8, 3), weights, max_graphs=count)
    uniform = range(4, 33, 4)
    best = min(_padding((*chosen, 32), weights) for chosen in combinations(uniform[:-1], count - 1))
    assert set(ladder.tiers) <= set(uniform)
    assert ladder.tiers[-1] == 32
    assert len(ladder.tiers) == count
    assert _padding(ladder.tiers, weights) == pytest.approx(best, abs=1e-9)
    assert f"{count} of 8" in ladder.cuts[0]


@settings(max_examples=60, deadline=None)
@given(
    weights=st.none() | st.dictionaries(st.integers(1, 24), st.integers(1, 9).map(float), min_size=1),
    count=st.none() | st.integers(0, 30),
    limit=st.integers(0, 400),
    prices=st.lists(st.integers(0, 60), min_size=24, max_size=24),
)
def test_a_limit_in_bytes_holds_and_no_uniform_size_that_still_fits_is_missing(weights, count, limit, prices):
    ladder = choose_ladder(
        _limits(6, 3), weights, max_graphs=count, bytes_limit=limit, bytes_of=lambda tier: prices[tier - 1]
    )
    spent = sum(prices[tier - 1] for tier in ladder.tiers)
    assert ladder.estimated_bytes == spent <= limit
    assert list(ladder.tiers) == sorted(set(ladder.tiers))
    assert count is None or len(ladder.tiers) <= count
    missing = [size for size in range(4, 25, 4) if size not in ladder.tiers]
    assert bool(missing) == bool(ladder.cuts)
    if count is None or len(ladder.tiers) < count:
        assert all(spent + prices[size - 1] > limit for size in missing)
