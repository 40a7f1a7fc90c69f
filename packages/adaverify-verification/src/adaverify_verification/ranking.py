"""Quantised survivals of one batch, and what the largest of them are worth."""

from __future__ import annotations

import numpy as np

from adaverify_verification.candidates import ranked_scores, worths


class Ranking:
    """Survivals of a batch; what all of them are worth is computed once.

    Args:
        scores: int [R, K] quantised survivals, 0 .. 65535; not changed once ``worths`` was asked.
    """

    __slots__ = ("_everything", "scores")

    def __init__(self, scores: np.ndarray) -> None:
        self.scores = scores
        self._everything: np.ndarray | None = None

    def worths(self, scheduled: np.ndarray, total: int) -> np.ndarray:
        """Return the expected accepted tokens of the largest 0, 1, .. survivals, float64 [total + 1].

        Args:
            scheduled: int64 [R], the drafts to rank, the first so many of each request.
            total: the sum of ``scheduled``.
        """
        if total < self.scores.size:
            return worths(ranked_scores(self.scores, scheduled, total))
        if self._everything is None:
            self._everything = worths(ranked_scores(self.scores, scheduled, total))
        return self._everything

    def worth_of(self, scheduled: np.ndarray) -> float:
        """Return the expected accepted tokens of the first ``scheduled`` int64 [R] drafts, all together."""
        return float(self.worths(scheduled, int(scheduled.sum()))[-1])
