"""KV pages: who owns which, handed out in runs where possible."""

from __future__ import annotations

import numpy as np

from adaverify_contracts import EngineError

NULL_PAGE = 0
"""Page that padding writes to and nobody reads; never handed out."""


class PageAllocator:
    """Page ids 1 .. pages - 1, given out whole at admission and taken back whole at the end.

    A run of consecutive pages is preferred: attention on a CPU then reads keys where they lie (copying them
    cost 0.25 ms a layer at 16 requests x 384 tokens, as much as the attention itself). A pool too fragmented
    for a run gives scattered pages, which are gathered; the result is the same.

    Args:
        pages: pages in the pool, the null page included; at least 2.
    """

    def __init__(self, pages: int) -> None:
        self._free = np.ones(pages, dtype=bool)
        self._free[NULL_PAGE] = False
        self._available = pages - 1

    @property
    def capacity(self) -> int:
        """Pages that requests can own."""
        return len(self._free) - 1

    @property
    def available(self) -> int:
        """Pages that nobody owns now."""
        return self._available

    def allocate(self, count: int, home: int | None = None) -> np.ndarray | None:
        """Return int32 ids of ``count`` pages, a run if there is one; None when too few are free.

        Args:
            count: pages wanted, at least 1.
            home: first page of the run to prefer, or None.
        """
        if count > self.available:
            return None
        start = self._run(count, home)
        ids = np.flatnonzero(self._free)[:count] if start is None else np.arange(start, start + count)
        self._free[ids] = False
        self._available -= count
        return ids.astype(np.int32)

    def release(self, pages: np.ndarray) -> None:
        """Take ``pages`` back.

        Raises:
            EngineError: a page is free already or is the null page; freeing twice hands one page to two
            owners.
        """
        if self._free[pages].any() or (pages == NULL_PAGE).any():
            raise EngineError(
                "pages were released twice",
                arrived=pages[self._free[pages] | (pages == NULL_PAGE)].tolist(),
                allowed="pages that a request owns",
                remedy="release a request's pages once, when it ends",
            )
        self._free[pages] = True
        self._available += len(pages)

    def _run(self, count: int, home: int | None) -> int | None:
        free = self._free
        if home is not None and home + count <= len(free) and free[home : home + count].all():
            return home
        edges = np.flatnonzero(np.diff(np.concatenate(([False], free, [False])).astype(np.int8)))
        starts, ends = edges[::2], edges[1::2]
        fits = np.flatnonzero(ends - starts >= count)
        return int(starts[fits[0]]) if len(fits) else None
