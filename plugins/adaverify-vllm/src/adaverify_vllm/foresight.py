"""The planner's search, made ready behind a step for the batch that comes next.

Which chunks of prompts will stand beside the requests is not known before the scheduler says so, and changes
from step to step. What their drafts are worth and what every size costs is known, so that behind a step both
are laid out, and before the next one only the sizes are looked through.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adaverify_contracts import Policy
from adaverify_verification import CostModel, PricePolicy, RatioPolicy


@dataclass(slots=True)
class Answer:
    """What the policy and the guard's margin choose.

    Attributes:
        budget: B; executed: query tokens that execute, padding included.
        tokens: expected emitted tokens; full_tokens: of verifying everything.
        seconds: predicted; full_seconds: of verifying everything.
    """

    budget: int
    executed: int
    tokens: float
    full_tokens: float
    seconds: float
    full_seconds: float


def serves(policy: Policy) -> bool:
    """Return whether the search knows the policy's rule; any other has to be asked."""
    return type(policy) in (RatioPolicy, PricePolicy)


class Foresight:
    """Looks through the sizes of a batch with prices and survivals of the step before.

    Args:
        policy: one that ``serves`` names.
        tiers: captured token counts, rising, at least one.
        beyond: token counts past the last tier that were priced, rising.
    """

    def __init__(self, policy: Policy, tiers: Sequence[int], beyond: Sequence[int]) -> None:
        self._prices_time = type(policy) is PricePolicy
        self._count, self._last = len(tiers), tiers[-1]
        self._knots = np.array([*tiers, *beyond], dtype=np.int64)
        self._tiers = self._knots[: self._count]
        # Searched without arrays: a bisection of a list takes a tenth of numpy's.
        self._sizes: list[int] = list(tiers)
        self._past = self._knots[self._count :].astype(np.float64)
        self._points: list[int] = list(beyond)
        self._end = int(self._knots[-1])
        self._seconds = np.zeros(0)
        self._values = np.zeros(1)
        self._drafts = np.arange(1, dtype=np.int64)
        self._emitting, self._drafting = 0, 0.0
        self._needed = 0.0
        self._rate: float | None = None

    def prepare(
        self,
        cost: CostModel,
        sums: np.ndarray,
        *,
        emitting: int,
        drafting: float,
        needed: float,
        rate: float | None,
    ) -> None:
        """Lay out prices and worth; behind the step.

        Args:
            cost: the prices, priced.
            sums: float64 [N + 1], expected tokens of the n best drafts, without those that are certain.
            emitting: requests that emit a token, as far as foreseen.
            drafting: seconds of drafting for them.
            needed: gain below which everything is verified.
            rate: tokens per second so far, None before the first step.
        """
        self._seconds = cost.executed_seconds(self._knots, 1, 0.0) + drafting
        self._values = sums + emitting
        self._emitting, self._drafting = emitting, drafting
        self._needed, self._rate = needed, rate

    def search(self, certain: int, most: int, emitting: int, came: int, drafting: float) -> Answer | None:
        """Return the choice for a batch; None where it is not to be had from what was laid out.

        Args:
            certain: query tokens that are not drafts.
            most: the largest budget, at least 1.
            emitting: requests that emit a token.
            came: drafts of requests that nothing is known of, taken for certain to survive.
            drafting: seconds of drafting.
        """
        last = certain + most
        if most - came >= len(self._values) or last > self._end:
            return None
        budgets, seconds = self._candidates(certain, most)
        if came:
            tokens = self._values[np.maximum(budgets - came, 0)] + np.minimum(budgets, came)
        elif most + 1 - len(budgets) == budgets[0]:
            # Past the last captured size every budget is a candidate: they need no gathering.
            tokens = self._values[budgets[0] : most + 1]
        else:
            tokens = self._values[budgets]
        # Mostly both are as foreseen, and what was laid out is used as it is.
        if emitting != self._emitting:
            tokens = tokens + (emitting - self._emitting)
        if drafting != self._drafting:
            seconds = seconds + (drafting - self._drafting)
        most_tokens, most_seconds = float(tokens[-1]), float(seconds[-1])
        if most_tokens <= 0:
            return None
        index, gain = self._best(tokens, seconds, most_tokens, most_seconds)
        if gain <= self._needed or seconds[0] >= most_seconds:
            executed = self._executed(last)
            return Answer(most, executed, most_tokens, most_tokens, most_seconds, most_seconds)
        budget, chosen = int(budgets[index]), float(tokens[index])
        if index == 0 and chosen <= float(self._values[0]) + (emitting - self._emitting):
            # Nothing on the first size is worth anything: nothing is the smaller budget.
            budget = 0
        executed = self._executed(certain + budget)
        return Answer(budget, executed, chosen, most_tokens, float(seconds[index]), most_seconds)

    def _candidates(self, certain: int, most: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the sizes as budgets int64 [C], everything last, and their prices float64 [C].

        0 is not among them where its size has room for drafts: they cost nothing more.
        """
        first = bisect_left(self._sizes, certain)
        if certain + most <= self._last:
            end = bisect_left(self._sizes, certain + most) + 1
            budgets = self._tiers[first:end] - certain
            budgets[-1] = most
            return budgets, self._seconds[first:end]
        if len(self._drafts) <= most:
            self._drafts = np.arange(2 * most, dtype=np.int64)
        past = self._drafts[max(0, self._last + 1 - certain) : most + 1]
        beyond = self._beyond(certain, past)
        if first == self._count:
            return past, beyond
        budgets = np.concatenate((self._tiers[first:] - certain, past))
        return budgets, np.concatenate((self._seconds[first : self._count], beyond))

    def _beyond(self, certain: int, budgets: np.ndarray) -> np.ndarray:
        """Return the prices of sizes past the last captured one: linear between those that were priced."""
        begin, end = certain + int(budgets[0]), certain + int(budgets[-1])
        right = bisect_left(self._points, end)
        if right == 0 or self._points[right - 1] > begin:
            return np.interp(budgets + certain, self._past, self._seconds[self._count :])
        # All between two points, as mostly: one line.
        left, prices = self._points[right - 1], self._seconds
        price = float(prices[self._count + right - 1])
        slope = (float(prices[self._count + right]) - price) / (self._points[right] - left)
        return budgets * slope + (price + (certain - left) * slope)

    def _best(
        self, tokens: np.ndarray, seconds: np.ndarray, most_tokens: float, most_seconds: float
    ) -> tuple[int, float]:
        """Return the policy's choice, the first of equals, and its gain over the last."""
        rate = self._rate
        if self._prices_time and rate is not None and rate > 0:
            worth = tokens - rate * seconds
            index = int(worth.argmax())
            saved = rate * (most_seconds - float(seconds[index]))
            return index, (float(tokens[index]) - most_tokens + saved) / (rate * float(seconds[index]))
        index = int((tokens / seconds).argmax())
        return index, float(tokens[index]) * most_seconds / (most_tokens * float(seconds[index])) - 1.0

    def _executed(self, tokens: int) -> int:
        index = bisect_left(self._sizes, tokens)
        return self._sizes[index] if index < self._count else tokens
