"""Quantised survivals of one batch, and what the largest of them are worth."""

from __future__ import annotations

import numpy as np

from adaverify_verification.candidates import ONE, SCORE_ONE, ranked_scores, sums, worths


class Ranking:
    """Survivals of a batch; they are ranked once, and what they are worth is kept.

    Args:
        scores: int [R, K] quantised survivals, 0 .. 65535; not changed once anything else was asked.
        ranked: uint16 [R x K], the same, the largest first, where they are known.
    """

    __slots__ = ("_emitting", "_everything", "_order", "_ranked", "_tokens", "scores")

    def __init__(self, scores: np.ndarray, ranked: np.ndarray | None = None) -> None:
        self.scores = scores
        self._ranked = ranked
        self._everything: np.ndarray | None = None
        self._order: np.ndarray | None = None
        # The requests that were taken to emit last, and the tokens expected of every budget then.
        self._emitting: int | None = None
        self._tokens: np.ndarray | None = None

    @property
    def everything(self) -> np.ndarray:
        """What the largest 0, 1, .. R x K survivals are worth in accepted tokens, float64 [R x K + 1]."""
        if self._everything is None:
            self._everything = sums(ranked_scores(self.scores) if self._ranked is None else self._ranked)
            self._everything /= ONE
        return self._everything

    @property
    def order(self) -> np.ndarray:
        """Where the survivals lie in ``scores``, int64 [R x K]: the largest first, then the first."""
        if self._order is None:
            # Not their negatives: unsigned ones would put every 0 before all others.
            self._order = np.argsort(SCORE_ONE - self.scores, axis=None, kind="stable")
        return self._order

    def falling(self) -> np.ndarray:
        """Return the survivals themselves, float64 [R x K], the largest first."""
        flat = self.scores.ravel()
        # One request is ranked by position already.
        return (flat if len(self.scores) == 1 else flat[self.order]).astype(np.float64)

    def like(self, falling: np.ndarray) -> Ranking:
        """Return other survivals of the same order: whole numbers float64 [R x K], the largest first.

        They may be out of order by what rounding makes of equal ones.
        """
        rising = falling[::-1].astype(np.uint16)
        if len(self.scores) == 1:
            scores = falling.astype(np.int32)
        else:
            scores = np.empty(len(falling), dtype=np.int32)
            scores[self.order] = falling
        rising.sort(kind="stable")
        return Ranking(scores.reshape(self.scores.shape), rising[::-1])

    def emitted(self, emitting: int) -> np.ndarray:
        """Return what budgets 0, 1, .. R x K emit beside ``emitting`` certain tokens, float64, read-only."""
        if self._tokens is None or emitting != self._emitting:
            self._emitting, self._tokens = emitting, self.everything + float(emitting)
            self._tokens.setflags(False)
        return self._tokens

    def tokens(self, scheduled: np.ndarray, total: int, budgets: np.ndarray, emitting: int) -> np.ndarray:
        """Return the expected emitted tokens of budgets, float64 [C]; do not write to them.

        Args:
            scheduled: int64 [R], the drafts to rank, the first so many of each request.
            total: the sum of ``scheduled``.
            budgets: int64 [C] in 0 .. total, strictly rising.
            emitting: tokens that are emitted whatever is verified.
        """
        if total < self.scores.size:
            return worths(sums(ranked_scores(self.scores, scheduled, total)), budgets) + float(emitting)
        tokens = self.emitted(emitting)
        # As many budgets as there are sums are all of them.
        return tokens if len(budgets) == len(tokens) else tokens[budgets]

    def worth_of(self, scheduled: np.ndarray) -> float:
        """Return the expected accepted tokens of the first ``scheduled`` int64 [R] drafts, all together."""
        return float(sums(ranked_scores(self.scores, scheduled))[-1]) / SCORE_ONE
