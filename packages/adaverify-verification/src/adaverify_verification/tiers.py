"""Captured token counts, and what they make of a batch, remembered by the shape of the batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adaverify_verification.candidates import candidate_budgets, executed_tokens

# Batches of some hundred shapes come back again and again. All of them together are few megabytes.
MOST_SHAPES = 256
_NONE = np.zeros(0, dtype=np.int64)


class Tiers:
    """Token counts that batches are padded to.

    Args:
        counts: strictly rising positive counts; none where every count executes as itself.
    """

    def __init__(self, counts: Sequence[int] = ()) -> None:
        self.counts = np.array(counts, dtype=np.int64)
        self._shapes: dict[tuple[int, int, bool], tuple[np.ndarray, np.ndarray]] = {}

    def __bool__(self) -> bool:
        return len(self.counts) > 0

    def executed(self, tokens: np.ndarray) -> np.ndarray:
        """Return what executes for token counts int64, padding included; int64 of their shape."""
        return executed_tokens(tokens, self.counts)

    def candidates(self, certain: int, maximum: int, every: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return the budgets that can be optimal and what executes for each, int64 [C] each, read-only.

        Args:
            certain: query tokens beside those that the budget adds.
            maximum: the largest budget.
            every: look at every budget, not at the tiers' ends alone.
        """
        key = (certain, maximum, every)
        found = self._shapes.get(key)
        if found is None:
            if len(self._shapes) >= MOST_SHAPES:
                self._shapes.clear()
            budgets = candidate_budgets(certain, maximum, _NONE if every else self.counts)
            executed = self.executed(certain + budgets)
            # Whoever wrote into what it is shown would change every later plan of this shape.
            budgets.setflags(write=False)
            executed.setflags(write=False)
            found = self._shapes[key] = (budgets, executed)
        return found
