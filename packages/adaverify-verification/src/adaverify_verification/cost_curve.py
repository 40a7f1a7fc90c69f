"""One measured curve of a cost table, corrected while serving."""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np

from adaverify_verification.cost_table import CostCurve
from adaverify_verification.monotone import isotonic

# Corrections stay within [0.5, 2] of what was measured.
LOG_BOUND = math.log(2.0)
# One step's error counts at most this much, so that a stall is not taken for a price ...
STEP_LIMIT = 0.25
LOCAL_RATE = 0.05
# ... except at a point hardly visited so far, where the table counts as this many visits: a probe is rare and
# must teach, or a size that is wrongly dear in the table would take thousands of steps to be found cheap.
TABLE_VISITS = 4.0
YOUNG = 8.0
# Step times change by about a tiling step of the kernels at a time: neighbours closer than this share a
# correction.
CELL_RATIO = 1.2
# A curve is continued this far past its last point with the slope of its upper half.
FAR = 1 << 24
_EVERYTHING = slice(None)


class PricedCurve:
    """A measured curve with its online correction; ``xs``/``ys`` are what prices are read from.

    ``local`` holds a log factor at each of a few ``cells``, a subset of the measured token counts, and is
    linear between them: in a table of every token count a measurement must teach its neighbours too.
    ``measured`` is ``ys`` before any correction.

    Args:
        curve: of the table.
    """

    def __init__(self, curve: CostCurve) -> None:
        self.tokens = np.array(curve.tokens, dtype=np.float64)
        self.base = np.array(curve.seconds, dtype=np.float64)
        chosen = _cells(curve.tokens)
        self.cells = np.array(chosen, dtype=np.float64)
        self.local = np.zeros_like(self.cells)
        self.visits = np.zeros_like(self.cells)
        # No cell of ``local`` is lower or higher, so that bounds are kept without looking at every cell.
        self.low = self.high = 0.0
        self.xs = np.append(self.tokens, self.tokens[-1] + FAR)
        self.ys = np.zeros(len(self.xs))
        # What single sizes are looked up in: the constant ``xs`` and ``cells``, for a search without arrays.
        self._grid: list[float] = self.xs.tolist()
        self._cells: list[float] = self.cells.tolist()
        # The measured points, from and to, that each cell's correction reaches.
        ends = [-math.inf, *self._cells, math.inf]
        starts = np.searchsorted(self.tokens, ends[:-2], side="right").tolist()
        stops = np.searchsorted(self.tokens, ends[2:], side="left").tolist()
        self._reach: list[tuple[int, int]] = list(zip(starts, stops, strict=True))
        self._middle = (len(self.tokens) - 1) // 2
        # Corrected, and not yet never falling.
        self._raw = np.zeros_like(self.base)
        # Whether nothing of it falls, so that ``ys`` holds the same.
        self._rises = False
        # The sizes asked for last, read-only, and where they lie in ``xs``; None when any lies between.
        self._asked: np.ndarray | None = None
        self._places: np.ndarray | slice | None = None
        self.rebuild()
        self.measured = self.ys.copy()

    def at(self, tokens: float, prices: np.ndarray) -> float:
        """Return what ``np.interp`` over ``xs`` and ``prices`` returns at one size, bit for bit."""
        grid, right = self._grid, bisect_left(self._grid, tokens)
        if right == len(grid):
            return float(prices[-1])
        if right == 0 or grid[right] == tokens:
            return float(prices[right])
        left, begin = right - 1, float(prices[right - 1])
        slope = (float(prices[right]) - begin) / (grid[right] - grid[left])
        return slope * (tokens - grid[left]) + begin

    def prices(self, sizes: np.ndarray) -> np.ndarray:
        """Return what ``np.interp`` over ``xs`` and ``ys`` returns, float64 of the shape of ``sizes``.

        Read it and let it go: it may be a view of ``ys``.

        Sizes that execute are measured ones as a rule, and arrays that cannot change come again as they are:
        reading prices where they lie takes a fifth of the time of an interpolation.
        """
        if sizes is not self._asked:
            # What can be written to may hold other sizes next time.
            self._asked = None if sizes.flags.writeable else sizes
            self._places = self._places_of(sizes)
        prices: np.ndarray = (
            np.interp(sizes, self.xs, self.ys) if self._places is None else self.ys[self._places]
        )
        return prices

    def _places_of(self, sizes: np.ndarray) -> np.ndarray | slice | None:
        """Return where ``sizes`` lie in ``xs``, None where any lies between."""
        places = np.searchsorted(self.xs, sizes)
        if not (self.xs.take(places, mode="clip") == sizes).all():
            return None
        # Without tiers every size is a candidate, and all of them lie side by side.
        if places.ndim == 1 and len(places) and (np.diff(places) == 1).all():
            return slice(int(places[0]), int(places[-1]) + 1)
        return np.asarray(places)

    def clip(self, low: float, high: float) -> bool:
        """Keep the correction within bounds; return whether it was outside, and the curve must be rebuilt."""
        if self.low >= low and self.high <= high:
            return False
        self.low, self.high = float(self.local.min()), float(self.local.max())
        if self.low >= low and self.high <= high:
            return False
        np.clip(self.local, low, high, out=self.local)
        self.low, self.high = max(self.low, low), min(self.high, high)
        return True

    def rebuild(self, points: slice = _EVERYTHING) -> None:
        """Apply the local correction, keep the curve never falling, continue it past its end.

        Args:
            points: the measured points whose correction has changed.
        """
        factors = np.exp(np.interp(self.tokens[points], self.cells, self.local))
        np.multiply(self.base[points], factors, out=self._raw[points])
        self._smooth(points)
        run = self._grid[-2] - self._grid[self._middle]
        last = float(self.ys[-2])
        slope = (last - float(self.ys[self._middle])) / run if run > 0 else 0.0
        self.ys[-1] = last + slope * FAR

    def _smooth(self, points: slice) -> None:
        """Take over the corrected ``points``, and keep the curve never falling."""
        if self._rises:
            # Nothing falls elsewhere: what has changed is looked at with its neighbours.
            start, stop, _ = points.indices(len(self._raw))
            seam = self._raw[max(0, start - 1) : stop + 1].tolist()
            if seam == sorted(seam):
                self.ys[start:stop] = self._raw[start:stop]
                return
        self.ys[:-1] = isotonic(self._raw)
        self._rises = np.array_equal(self.ys[:-1], self._raw)

    def correct(self, tokens: float, error: float, weight: float) -> slice:
        """Move the cells around ``tokens`` by a share of a log ``error``; return the points to rebuild."""
        around = self._around(tokens)
        for cell, share in around:
            visits = float(self.visits[cell])
            limit = LOG_BOUND if visits < YOUNG else STEP_LIMIT
            rate = max(LOCAL_RATE, 1.0 / (visits + TABLE_VISITS))
            moved = float(self.local[cell]) + rate * weight * share * max(-limit, min(limit, error))
            self.local[cell], self.visits[cell] = moved, visits + weight * share
            self.low, self.high = min(self.low, moved), max(self.high, moved)
        return slice(self._reach[around[0][0]][0], self._reach[around[-1][0]][1])

    def visits_at(self, tokens: float) -> float:
        """Return how many steps have taught the price at ``tokens``."""
        return max(float(self.visits[cell]) for cell, _ in self._around(tokens))

    def spread(self) -> float:
        """Return how far apart the prices at sizes are that steps have taught, as a share of the lowest."""
        taught = self.cells[self.visits >= YOUNG / 2]
        if len(taught) < 2:
            return 0.0
        prices = np.interp(taught[[0, -1]], self.xs, self.ys)
        return float(prices[1] / prices[0]) - 1.0

    def rebase(self, factor: float) -> None:
        """Take ``factor`` times the measured times for measured, and forget what was taught about them."""
        self.base *= factor
        self.local[:] = 0.0
        self.low = self.high = 0.0
        self.visits[:] = 0.0
        self.rebuild()
        self.measured = self.ys.copy()

    def _around(self, tokens: float) -> list[tuple[int, float]]:
        """Return the (cell, weight) pairs that the correction at ``tokens`` is read from."""
        cells = self._cells
        right = bisect_left(cells, tokens)
        if right == 0 or right == len(cells) or cells[right] == tokens:
            return [(min(right, len(cells) - 1), 1.0)]
        share = (tokens - cells[right - 1]) / (cells[right] - cells[right - 1])
        return [(right - 1, 1.0 - share), (right, share)]


def _cells(tokens: tuple[int, ...]) -> list[int]:
    """Return the measured counts that carry a correction: both ends, others CELL_RATIO apart."""
    chosen = [tokens[0]]
    for count in tokens[1:-1]:
        if count >= CELL_RATIO * chosen[-1] and count * CELL_RATIO <= tokens[-1]:
            chosen.append(count)
    if len(tokens) > 1:
        chosen.append(tokens[-1])
    return chosen
