"""The search for tiers: exact for every number of tiers, within a limit in bytes."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np


class Sizes:
    """Expected batch sizes with their weights; answers what padding a set of tiers costs."""

    def __init__(self, weights: Mapping[int, float]) -> None:
        self.sizes = np.array(sorted(weights), dtype=np.int64)
        shares = np.array([weights[int(size)] for size in self.sizes], dtype=np.float64)
        self._weight = np.concatenate([[0.0], np.cumsum(shares)])
        self.total = float(shares.sum())
        self._moment = np.concatenate([[0.0], np.cumsum(shares * self.sizes)])

    def costs(self, lower: Sequence[int], upper: Sequence[int]) -> np.ndarray:
        """Return float64 [lower, upper]: padding of the sizes in (lower, upper] when they run at upper.

        Infinite where lower >= upper. Prefix sums make each entry u (W_u - W_l) - (M_u - M_l), with W the
        weights up to a tier and M the weights times sizes.
        """
        low, high = np.asarray(lower, dtype=np.int64), np.asarray(upper, dtype=np.int64)
        at_low = np.searchsorted(self.sizes, low, side="right")
        at_high = np.searchsorted(self.sizes, high, side="right")
        weight = self._weight[at_high][None, :] - self._weight[at_low][:, None]
        moment = self._moment[at_high][None, :] - self._moment[at_low][:, None]
        return np.where(low[:, None] < high[None, :], high[None, :] * weight - moment, np.inf)

    def mean_padding(self, tiers: Sequence[int]) -> float:
        """Return the mean padding over the sizes that the tiers hold, 0 when they hold none."""
        if not tiers:
            return 0.0
        held = self._weight[np.searchsorted(self.sizes, tiers[-1], side="right")]
        edges = [0, *tiers]
        total = sum(float(self.costs([low], [high])[0, 0]) for low, high in zip(edges, tiers, strict=False))
        return max(0.0, total) / float(held) if held > 0 else 0.0


def best_paths(
    sizes: Sizes, below: int, candidates: Sequence[int], most: int
) -> list[tuple[float, list[int]]]:
    """Return, for 1 .. ``most`` tiers out of ``candidates``, the least padding and the tiers that give it.

    The last candidate is always a tier; sizes at or below ``below`` do not count. With n candidates this
    takes ``most`` x n^2 steps: F(g, i) = min over j < i of F(g - 1, j) + padding(j, i).
    """
    first = sizes.costs([below], candidates)[0]
    step = sizes.costs(candidates, candidates)
    least, choices, columns = first, [], np.arange(len(candidates))
    found = [(float(first[-1]), [candidates[-1]])]
    for count in range(2, min(most, len(candidates)) + 1):
        through = least[:, None] + step
        choices.append(np.argmin(through, axis=0))
        least = through[choices[-1], columns]
        at, path = len(candidates) - 1, [candidates[-1]]
        for choice in reversed(choices[: count - 1]):
            at = int(choice[at])
            path.append(candidates[at])
        found.append((float(least[-1]), path[::-1]))
    return found


@dataclass
class _Segment:
    """Tiers strictly below one uniform size and above the one before it."""

    paths: list[tuple[float, list[int]]]
    used: int = 0

    @property
    def gain(self) -> float:
        """Padding that one more tier here would save."""
        return self.paths[self.used][0] - self.paths[self.used + 1][0]

    @property
    def tiers(self) -> list[int]:
        return self.paths[self.used][1]


@dataclass
class BestTiers:
    """Chooses tiers for given sizes within a limit in bytes."""

    sizes: Sizes
    bytes_of: Callable[[int], int] | None = None
    bytes_limit: int | None = None
    _known: dict[int, int] = field(default_factory=dict)

    def _bytes(self, tiers: Sequence[int]) -> int:
        if self.bytes_of is None:
            return 0
        for tier in tiers:
            if tier not in self._known:
                self._known[tier] = self.bytes_of(tier)
        return sum(self._known[tier] for tier in tiers)

    def fit(self, tiers: Sequence[int]) -> bool:
        """Return whether all tiers together stay within the limit."""
        return self.bytes_limit is None or self._bytes(tiers) <= self.bytes_limit

    def fits_alone(self, tier: int) -> bool:
        """Return whether one tier alone stays within the limit."""
        return self.fit([tier])

    def among(self, candidates: Sequence[int], count: int) -> list[int]:
        """Return at most ``count`` of ``candidates``, the last one among them, that fit and pad least."""
        if not candidates or count < 1:
            return []
        fitting = [path for _, path in best_paths(self.sizes, 0, candidates, count) if self.fit(path)]
        # One tier always fits: callers pass candidates that fit alone.
        return self._filled(fitting[-1], candidates, count)

    def _filled(self, tiers: list[int], candidates: Sequence[int], count: int) -> list[int]:
        """Add candidates while one still fits, each time the one that saves most padding."""
        tiers = list(tiers)
        while len(tiers) < count:
            options = [item for item in candidates if item not in tiers and self.fit([*tiers, item])]
            if not options:
                break
            bisect.insort(tiers, max(options, key=lambda item: (self._saving(tiers, item), item)))
        return tiers

    def _saving(self, tiers: Sequence[int], extra: int) -> float:
        at = bisect.bisect_left(tiers, extra)
        low, high = (tiers[at - 1] if at else 0), tiers[at]
        return float(
            self.sizes.costs([low], [high])[0, 0] - self.sizes.costs([low, extra], [extra, high]).trace()
        )

    def refined(self, uniform: Sequence[int], between: Sequence[int], count: int | None) -> list[int]:
        """Return all of ``uniform`` and the tiers of ``between`` that save padding within the limits.

        Padding is convex in the number of tiers of a segment (its costs satisfy the quadrangle inequality),
        so taking the largest gain first over all segments is exact for every count.
        """
        segments = self._segments(uniform, between)
        total, room = self._bytes(uniform), (None if count is None else count - len(uniform))
        queue = [(-item.gain, at) for at, item in enumerate(segments) if len(item.paths) > 1]
        heapq.heapify(queue)
        least = (
            1e-9 * self.sizes.total
        )  # below this a gain is rounding: one token of padding weighs 1 / total
        while queue and (room is None or room > 0):
            lost, at = heapq.heappop(queue)
            segment = segments[at]
            more = self._bytes(segment.paths[segment.used + 1][1]) - self._bytes(segment.tiers)
            if -lost <= least or (self.bytes_limit is not None and total + more > self.bytes_limit):
                continue
            segment.used += 1
            total += more
            room = None if room is None else room - 1
            if segment.used + 1 < len(segment.paths):
                heapq.heappush(queue, (-segment.gain, at))
        return [tier for segment in segments for tier in segment.tiers]

    def _segments(self, uniform: Sequence[int], between: Sequence[int]) -> list[_Segment]:
        segments, below = [], 0
        for size in uniform:
            inside = between[bisect.bisect_right(between, below) : bisect.bisect_left(between, size)]
            candidates = [*inside, size]
            segments.append(_Segment(best_paths(self.sizes, below, candidates, len(candidates))))
            below = size
        return segments
