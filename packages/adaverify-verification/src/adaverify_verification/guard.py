"""Full verification is the incumbent: trimming must beat it by a margin that grows with our own error."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

# Weight of the newest step in the running error: about the last 100 steps count.
MEMORY = 0.02
# Fewer samples than this say nothing about a bias.
MINIMUM_SAMPLES = 8
# A margin past this is "never trim" in all but name; it keeps one absurd step from switching trimming off.
WIDEST = 0.25
# One step's error counts at most this much, so that a paused process is not taken for a bias.
CLIP = 1.0
# Entering needs the margin, staying half of it: a load that hovers at a threshold does not swing the plan.
STAY = 0.5


@dataclass(slots=True)
class RunningError:
    """Exponentially weighted mean of an error with its standard error."""

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def add(self, error: float) -> None:
        """Count one error; a value that is not finite is ignored."""
        if not math.isfinite(error):
            return
        error = max(-CLIP, min(CLIP, error))
        self.count += 1
        weight = max(MEMORY, 1.0 / self.count)
        delta = error - self.mean
        self.mean += weight * delta
        self.variance = (1.0 - weight) * (self.variance + weight * delta * delta)

    @property
    def noise(self) -> float:
        """Standard error of the mean."""
        return math.sqrt(self.variance * max(MEMORY / (2.0 - MEMORY), 1.0 / max(1, self.count)))

    def excess_over(self, other: RunningError) -> float:
        """Return by how much this mean exceeds the other beyond two standard errors; 0 with few samples."""
        if min(self.count, other.count) < MINIMUM_SAMPLES:
            return 0.0
        return max(0.0, self.mean - other.mean - 2.0 * math.hypot(self.noise, other.noise))


class Guard:
    """Settles a policy's choice against full verification and against the previous step's choice.

    Reads lagged values only: a guard on live values changes the output law (maths M5).

    Args:
        margin: least relative gain over full verification that trimming must promise.
        hysteresis: relative gain below which the executed tier stays what it was.
    """

    def __init__(self, margin: float, hysteresis: float) -> None:
        self._base = margin
        self._hysteresis = hysteresis
        self._time = {True: RunningError(), False: RunningError()}
        self._tokens = {True: RunningError(), False: RunningError()}
        self.trimming = False
        self._tier: int | None = None
        # Kept between observations: a plan reads it, and only they change it.
        self._margin = self._widened()
        self._words = _margins(self._margin)

    @property
    def margin(self) -> float:
        """The margin in force: the configured one, widened by errors that favour trimming."""
        return self._margin

    def _widened(self) -> float:
        """Return the configured margin, widened by errors that favour trimming.

        What counts is how trimmed steps fare *against* full ones, beyond the noise: trimmed steps slower than
        predicted, or full ones richer. An error common to both cancels in the ratio of tokens to time: a
        machine that is 20 % slower today, or drafts that are 20 % worse than thought, say nothing for
        verifying them all.
        """
        slower = self._time[True].excess_over(self._time[False])
        richer = self._tokens[False].excess_over(self._tokens[True])
        return self._base + min(WIDEST, slower + richer)

    def observe(
        self,
        *,
        trimmed: bool,
        predicted_seconds: float | None,
        seconds: float | None,
        predicted_tokens: float,
        tokens: int,
    ) -> None:
        """Count how one executed plan's prediction compares with what happened."""
        if predicted_seconds and seconds and predicted_seconds > 0 and seconds > 0:
            self._time[trimmed].add(math.log(seconds / predicted_seconds))
        if predicted_tokens > 0:
            self._tokens[trimmed].add((tokens - predicted_tokens) / predicted_tokens)
        margin = self._widened()
        if margin != self._margin:
            self._margin, self._words = margin, _margins(margin)

    def settle(
        self, gains: np.ndarray, choice: int, executed: np.ndarray, *, tiered: bool
    ) -> tuple[int, str]:
        """Return the candidate to run and why.

        Args:
            gains: float64 [C], relative gain of each candidate over the last, which is full verification.
            choice: the policy's choice.
            executed: int64 [C], what executes for each candidate, never falling.
            tiered: True when sizes are captured tiers; without tiers every size is its own and none is kept.
        """
        full = len(gains) - 1
        staying, gain = self.trimming, gains.item(choice)
        needed = self._margin * STAY if staying else self._margin
        if choice == full or gain <= needed:
            self.trimming, self._tier = False, executed.item(full)
            if choice == full:
                return full, "verifying everything is worth most"
            return full, f"trimming would gain {gain:.1%}, less than the margin {needed:.1%}"
        kept = self._same_tier(gains, choice, executed) if tiered else choice
        self.trimming, self._tier = True, executed.item(kept)
        if kept == choice:
            return kept, f"trimming gains {gain:.1%}{self._words[staying]}"
        mine = gains.item(kept)
        more = f", tier kept: another gains {gain - mine:.2%} more"
        return kept, f"trimming gains {mine:.1%}{self._words[staying]}{more}"

    def _same_tier(self, gains: np.ndarray, choice: int, executed: np.ndarray) -> int:
        """Return the candidate on the previous tier when the chosen one is better only within noise."""
        if not self.trimming or self._tier is None or executed.item(choice) == self._tier:
            return choice
        # Two candidates can share a tier (0 and its end); the larger buys more for the same price.
        kept = min(bisect_right(executed.data, self._tier), len(gains) - 1) - 1
        if kept < 0 or executed.item(kept) != self._tier:
            return choice
        mine = gains.item(kept)
        return kept if mine > 0 and gains.item(choice) - mine < self._hysteresis else choice


def _margins(margin: float) -> tuple[str, str]:
    """Return the words for a margin in force: to enter trimming, and to stay."""
    return f" (margin {margin:.1%})", f" (margin {margin * STAY:.1%})"
