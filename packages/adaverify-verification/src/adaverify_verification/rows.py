"""Which request each row belongs to: slots and generations, kept, compared and looked up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adaverify_contracts import StepState

Rows = tuple[np.ndarray, np.ndarray]
"""Slots and generations of a publication, int64 [R] each, in row order."""


def frozen(values: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return a copy int64 [R] that nobody can write to."""
    copied = np.array(values, dtype=np.int64)
    copied.setflags(write=False)
    return copied


def kept(mine: np.ndarray, values: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return ``mine``, a frozen array, where it holds ``values``, else a frozen copy of them."""
    if values is mine:
        return mine
    # A decode batch repeats, and comparing takes a third of the time of copying and freezing.
    if isinstance(values, np.ndarray) and values.shape == mine.shape and values.dtype is mine.dtype:
        return mine if values.tobytes() == mine.tobytes() else frozen(values)
    return frozen(values)


def same_requests(slots: np.ndarray, generations: np.ndarray, state: StepState) -> bool:
    """Return whether the published rows are the requests of ``state``, in its order: the usual case."""
    others, theirs = state.slots, state.generations
    if slots.dtype is others.dtype and generations.dtype is theirs.dtype:
        return slots.tobytes() == others.tobytes() and generations.tobytes() == theirs.tobytes()
    return same_values(slots, others) and same_values(generations, theirs)


def same_values(mine: np.ndarray, theirs: np.ndarray) -> bool:
    """Return whether two integer arrays [R] are equal, in a tenth of NumPy's time where their types are."""
    if mine is theirs:
        return True
    if mine.dtype == theirs.dtype:
        return mine.tobytes() == theirs.tobytes()
    return np.array_equal(mine, theirs)


def lookup(slots: np.ndarray, generations: np.ndarray, state: StepState) -> np.ndarray:
    """Return the published row of each request of ``state``, -1 when absent or of another generation."""
    if not len(slots):
        return np.full(state.requests, -1, dtype=np.int64)
    order = np.argsort(slots, kind="stable")
    row = order[np.minimum(np.searchsorted(slots[order], state.slots), len(slots) - 1)]
    same = (slots[row] == state.slots) & (generations[row] == state.generations)
    return np.where(same, row, -1)
