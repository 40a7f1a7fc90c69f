"""Page allocation: runs where possible, scattered where not, never twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import EngineError
from adaverify_engine.pages import PageAllocator


def test_home_run_is_preferred_and_the_null_page_never_given():
    """The preferred run is used when free, another run when not."""
    pool = PageAllocator(9)
    assert pool.capacity == 8
    assert pool.allocate(3, home=4).tolist() == [4, 5, 6]
    assert pool.allocate(3, home=4).tolist() == [1, 2, 3]
    assert pool.allocate(3, home=4) is None
    assert pool.allocate(2, home=0).tolist() == [7, 8]
    assert pool.available == 0


def test_fragmented_pool_gives_scattered_pages():
    """Enough pages but no run: the pages are given all the same."""
    pool = PageAllocator(7)
    parts = [pool.allocate(1) for _ in range(6)]
    for part in parts[::2]:
        pool.release(part)
    assert pool.allocate(3).tolist() == [1, 3, 5]


def test_releasing_twice_is_an_error():
    """A page freed twice would have two owners."""
    pool = PageAllocator(4)
    pages = pool.allocate(2)
    pool.release(pages)
    with pytest.raises(EngineError, match="released twice"):
        pool.release(pages)
    with pytest.raises(EngineError, match="released twice"):
        pool.release(np.array([0], dtype=np.int32))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6), st.integers(0, 25)), max_size=40))
def test_owners_never_overlap(moves):
    """Whatever the order, live allocations are disjoint, sized as asked, and the books balance."""
    pool, live = PageAllocator(25), []
    for take, count, home in moves:
        if take:
            pages = pool.allocate(count, home=home)
            assert (pages is None) == (count > 24 - sum(map(len, live)))
            if pages is not None:
                assert len(pages) == count
                live.append(pages)
        elif live:
            pool.release(live.pop(home % len(live)))
        owned = [page for pages in live for page in pages.tolist()]
        assert len(set(owned)) == len(owned)
        assert 0 not in owned
        assert pool.available == 24 - len(owned)
