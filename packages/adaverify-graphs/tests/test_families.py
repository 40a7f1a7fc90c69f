"""Drafting-free sizes beside the ladder: how many, which, and within which limits."""

from __future__ import annotations

import pytest

from adaverify_contracts import GraphError, GraphKey, Limits
from adaverify_graphs import bare_keys, check_key, choose_families, choose_ladder, is_bare


def limits_of(requests, draft_tokens=7):
    return Limits(requests, draft_tokens, 512, 16)


@pytest.mark.parametrize("requests", [7, 8, 16, 40, 64, 256])
def test_both_families_are_at_most_a_seventh_larger_than_the_ladder_alone(requests):
    """Capture time goes with the number of graphs, so 1.15 of the ladder's is kept by counting."""
    limits = limits_of(requests)
    families, alone = choose_families(limits), choose_ladder(limits)
    assert families.drafting == alone
    assert 1.0 < (len(alone.tiers) + len(families.bare)) / len(alone.tiers) < 1.15
    assert families.bare[-1] == requests, "the largest batch is where drafting loses most"
    assert list(families.bare) == sorted(set(families.bare))


@pytest.mark.parametrize("requests", [1, 2, 6])
def test_small_engines_have_one_drafting_free_graph(requests):
    assert choose_families(limits_of(requests)).bare == (requests,)


@pytest.mark.parametrize("most", [0, 1, 2, 5, 9, 32, 100])
def test_the_limit_in_graphs_holds_both_families(most):
    """A limit of one leaves the graph that drafts: it serves every batch."""
    limits = limits_of(64)
    families = choose_families(limits, max_graphs=most)
    assert len(families.keys(limits)) == most
    assert len(families.bare) == (0 if most < 2 else max(1, min(8, most // 9)))
    assert not families.drafting.tiers or families.drafting.tiers[-1] == limits.max_tokens


def test_sizes_are_spread_relative_to_the_batch():
    """16 sizes for 512 requests: no batch of 32 or more runs at 1.6 of its size."""
    bare = choose_families(limits_of(512)).bare
    assert len(bare) == 16
    padding = [min(tier for tier in bare if tier >= count) / count for count in range(32, 513)]
    assert max(padding) < 1.6


def test_a_limit_in_bytes_holds_both_families():
    """What the ladder leaves is what drafting-free graphs may take; nothing when it leaves nothing."""
    limits = limits_of(16)
    whole = sum(choose_ladder(limits).tiers)
    assert choose_families(limits, bytes_limit=whole, bytes_of=lambda tier: tier).bare == ()
    families = choose_families(limits, bytes_limit=whole + 20, bytes_of=lambda tier: tier)
    assert families.bare and sum(families.bare) <= 20
    with pytest.raises(GraphError, match="bytes_of"):
        choose_families(limits, bytes_limit=whole)


def test_nothing_is_drafting_free_where_nothing_is_drafted():
    limits = limits_of(16, draft_tokens=0)
    assert choose_families(limits).bare == ()
    assert not is_bare(GraphKey(4, 4, 1, limits.table_width), limits)


def test_keys_fit_the_buffers_and_say_their_family():
    limits = limits_of(16)
    for key in bare_keys((5, 16), limits):
        check_key(key, limits)
        assert is_bare(key, limits)
    families = choose_families(limits)
    assert [is_bare(key, limits) for key in families.drafting.keys(limits)] == [False] * 16
