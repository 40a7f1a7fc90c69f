"""What profiled steps look like."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adaverify_engine.forced import ranked_counts


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(0, 9), st.data())
def test_counts_are_a_ranking_of_as_many_drafts(seed, requests, width, data):
    """As many as asked for, no request more than K; more drafts take none away."""
    count = data.draw(st.integers(0, requests * width))
    found = ranked_counts(np.random.default_rng(seed), requests, width, count)
    assert found.sum() == count and found.min() >= 0 and found.max() <= width
    if count:
        fewer = ranked_counts(np.random.default_rng(seed), requests, width, count - 1)
        assert (fewer <= found).all()


def test_some_request_is_sure_of_everything_long_before_all_are():
    """Spread at random, half of all drafts left nobody all seven in nine steps of ten."""
    random = np.random.default_rng(0)
    longest = [ranked_counts(random, 16, 7, 56).max() for _ in range(100)]
    assert np.mean(np.array(longest) == 7) > 0.95
