"""Budget policies: which candidate is worth most, from lagged values only."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from adaverify_contracts import BudgetCandidates

# An array without a dimension: NumPy makes one of a number in every call, which takes a third of it.
_ONE = np.array(1.0)


@runtime_checkable
class GainPolicy(Protocol):
    """A policy that also says how much each candidate gains; the guard then judges in the same currency."""

    def gains(self, candidates: BudgetCandidates) -> np.ndarray:
        """Return each candidate's relative gain over full verification, float64 [C]; the last is 0."""
        ...


def best(gains: np.ndarray) -> int:
    """Return the index of the largest gain; everything wins every tie, then the smaller budget does."""
    last, index = len(gains) - 1, int(gains.argmax())
    return last if gains.item(index) <= gains.item(last) else index


def ratio_gains(candidates: BudgetCandidates) -> np.ndarray:
    """Return Theta(n) / Theta(N) - 1 for each candidate, float64 [C] (maths section 1).

    Where everything yields no token (nobody emits and every survival is 0) all ratios are 0: saved time
    counts.
    """
    tokens, seconds = candidates.tokens, candidates.seconds
    if tokens.item(-1) <= 0:
        return seconds.item(-1) / seconds - 1.0
    # Equal tokens and seconds are an exact tie: both products are then of the same two numbers. Those of
    # everything stay arrays without a dimension, as above.
    gains = tokens * seconds[-1, ...]
    gains /= tokens[-1, ...] * seconds
    gains -= _ONE
    return gains


class RatioPolicy:
    """Maximise expected tokens a second of this step alone."""

    def __init__(self) -> None:
        # The guard asks for the gains that the choice was made by: they are computed once.
        self._last: tuple[BudgetCandidates, np.ndarray] | None = None

    def gains(self, candidates: BudgetCandidates) -> np.ndarray:
        """Return each candidate's relative gain over full verification, float64 [C]."""
        if self._last is None or self._last[0] is not candidates:
            self._last = (candidates, ratio_gains(candidates))
        return self._last[1]

    def choose(self, candidates: BudgetCandidates) -> int:
        """Return the index of the candidate with the largest ratio."""
        return best(self.gains(candidates))


class PricePolicy:
    """Maximise tau - lambda C, lambda the achieved long-run rate (Dinkelbach; maths section 8, M15).

    It spends less in poor steps and more in rich ones than the ratio. Before the first measurement it is the
    ratio.
    """

    def gains(self, candidates: BudgetCandidates) -> np.ndarray:
        """Return each candidate's relative gain over full verification, float64 [C].

        With lambda equal to full verification's own ratio these are the ratio's gains.
        """
        rate = candidates.rate
        if rate is None or not rate > 0:
            return ratio_gains(candidates)
        tokens, seconds = candidates.tokens, candidates.seconds
        return (tokens - tokens[-1] + rate * (seconds[-1] - seconds)) / (rate * seconds)

    def choose(self, candidates: BudgetCandidates) -> int:
        """Return the index of the candidate with the largest tokens less priced time."""
        rate = candidates.rate
        if rate is None or not rate > 0:
            return best(ratio_gains(candidates))
        return best(candidates.tokens - rate * candidates.seconds)


class AchievedRate:
    """Long-run tokens per second, lagged: the price that ``PricePolicy`` puts on time."""

    # About the last 100 steps count, so that the price follows the load.
    MEMORY = 0.99

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def add(self, tokens: int, seconds: float | None) -> None:
        """Count one finished step; one that was not measured does not count."""
        if seconds is not None and 0 < seconds < float("inf"):
            self._tokens = self._tokens * self.MEMORY + tokens
            self._seconds = self._seconds * self.MEMORY + seconds

    @property
    def value(self) -> float | None:
        """Tokens per second, None before the first measurement."""
        return self._tokens / self._seconds if self._seconds > 0 else None
