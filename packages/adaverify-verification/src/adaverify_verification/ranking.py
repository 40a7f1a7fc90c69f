"""Quantised survivals of one batch, and what the largest of them are worth."""

from __future__ import annotations

import numpy as np

from adaverify_verification.candidates import SCORE_ONE, ranked_scores, sums, worths


class Ranking:
    """Survivals of a batch; they are ranked once, and what budgets are worth is kept for those asked last.

    Args:
        scores: int [R, K] quantised survivals, 0 .. 65535; not changed once ``worths`` was asked.
    """

    __slots__ = ("_asked", "_everything", "_found", "_order", "scores")

    def __init__(self, scores: np.ndarray) -> None:
        self.scores = scores
        self._everything: np.ndarray | None = None
        self._order: np.ndarray | None = None
        # Budgets that cannot change, and what they are worth.
        self._asked: np.ndarray | None = None
        self._found: np.ndarray | None = None

    @property
    def everything(self) -> np.ndarray:
        """The sums of the largest 0, 1, .. R x K survivals, float64 [R x K + 1]."""
        if self._everything is None:
            self._everything = sums(ranked_scores(self.scores))
        return self._everything

    @property
    def order(self) -> np.ndarray:
        """Where the survivals lie in ``scores``, int64 [R x K]: the largest first, then the first."""
        if self._order is None:
            # Not their negatives: unsigned ones would put every 0 before all others.
            self._order = np.argsort(SCORE_ONE - self.scores, axis=None, kind="stable")
        return self._order

    def worths(self, scheduled: np.ndarray, total: int, budgets: np.ndarray) -> np.ndarray:
        """Return the expected accepted tokens of budgets, float64 [C]; do not write to them.

        Args:
            scheduled: int64 [R], the drafts to rank, the first so many of each request.
            total: the sum of ``scheduled``.
            budgets: int64 [C] in 0 .. total, strictly rising.
        """
        if total < self.scores.size:
            return worths(sums(ranked_scores(self.scores, scheduled, total)), budgets)
        if budgets is self._asked and self._found is not None:
            return self._found
        found = worths(self.everything, budgets)
        if not budgets.flags.writeable:
            self._asked, self._found = budgets, found
        return found

    def worth_of(self, scheduled: np.ndarray) -> float:
        """Return the expected accepted tokens of the first ``scheduled`` int64 [R] drafts, all together."""
        return float(sums(ranked_scores(self.scores, scheduled))[-1]) / SCORE_ONE
