"""Which requests' keys can be read where they lie, in one strided view."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np


@dataclass(frozen=True, slots=True)
class Run:
    """Requests ``members`` whose page runs start at ``start``, ``start + stride``, ... in that order."""

    members: tuple[int, ...]
    start: int
    stride: int


def consecutive(table: np.ndarray, pages: np.ndarray) -> bool:
    """Return whether the first ``pages[r]`` entries of every row of ``table`` [R, W] are consecutive ids."""
    at = np.arange(table.shape[1])
    return bool(((table == table[:, :1] + at) | (at >= pages[:, None])).all())


@lru_cache(maxsize=256)
def arithmetic_runs(starts: tuple[int, ...]) -> tuple[Run, ...]:
    """Partition requests into arithmetic progressions of start pages, greedily from the lowest page.

    Cached: the composition of a batch changes once in many steps.

    Args:
        starts: first page of each request, in batch order, all different.
    """
    order = sorted(range(len(starts)), key=starts.__getitem__)
    runs, at = [], 0
    while at < len(order):
        end = at + 1
        if end < len(order):
            stride = starts[order[end]] - starts[order[at]]
            while end < len(order) and starts[order[end]] - starts[order[end - 1]] == stride:
                end += 1
        else:
            stride = 0
        runs.append(Run(tuple(order[at:end]), starts[order[at]], stride))
        at = end
    return tuple(runs)
