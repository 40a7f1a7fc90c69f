"""One measured curve of step times, corrected while serving, and how prices are read between curves."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

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


@dataclass(slots=True)
class Curve:
    """A measured curve with its online correction; ``xs``/``ys`` are what prices are read from.

    ``local`` holds a log factor at each of a few ``cells``, a subset of the measured token counts, and is
    linear between them: in a table of every token count a measurement must teach its neighbours too.
    ``measured`` is ``ys`` before any correction.
    """

    tokens: np.ndarray
    base: np.ndarray
    cells: np.ndarray
    local: np.ndarray
    visits: np.ndarray
    xs: np.ndarray
    ys: np.ndarray
    measured: np.ndarray
    # The lowest and highest of ``local``, so that bounds are kept without looking at every curve's cells.
    low: float = 0.0
    high: float = 0.0
    # What prices at single sizes are read from: the constant ``xs`` as floats, for a search without arrays.
    grid: tuple[float, ...] = ()

    @classmethod
    def of(cls, curve: CostCurve) -> Curve:
        """Return a measured curve without any correction."""
        tokens = np.array(curve.tokens, dtype=np.float64)
        cells = _cells(curve.tokens)
        made = cls(
            tokens,
            base=np.array(curve.seconds, dtype=np.float64),
            cells=cells,
            local=np.zeros_like(cells),
            visits=np.zeros_like(cells),
            xs=np.append(tokens, tokens[-1] + FAR),
            ys=np.zeros(len(tokens) + 1),
            measured=np.zeros(0),
        )
        made.grid = tuple(made.xs.tolist())
        made.rebuild()
        made.measured = made.ys.copy()
        return made

    def at(self, tokens: float, prices: np.ndarray) -> float:
        """Return what ``np.interp`` over ``xs`` and ``prices`` returns at one size, bit for bit."""
        grid, right = self.grid, bisect_left(self.grid, tokens)
        if right == len(grid):
            return float(prices[-1])
        if right == 0 or grid[right] == tokens:
            return float(prices[right])
        left, begin = right - 1, float(prices[right - 1])
        slope = (float(prices[right]) - begin) / (grid[right] - grid[left])
        return slope * (tokens - grid[left]) + begin

    def clip(self, low: float, high: float) -> bool:
        """Keep the correction within bounds; return whether it was outside."""
        if self.low >= low and self.high <= high:
            return False
        np.clip(self.local, low, high, out=self.local)
        self.low, self.high = max(self.low, low), min(self.high, high)
        return True

    def rebuild(self) -> None:
        """Apply the local correction, keep the curve never falling, continue it past its end."""
        values = isotonic(self.base * np.exp(np.interp(self.tokens, self.cells, self.local)))
        self.ys[:-1] = values
        middle = (len(values) - 1) // 2
        run = self.tokens[-1] - self.tokens[middle]
        slope = (values[-1] - values[middle]) / run if run > 0 else 0.0
        self.ys[-1] = values[-1] + slope * FAR

    def correct(self, tokens: float, error: float, weight: float) -> None:
        """Move the cells around ``tokens`` by a share of a log ``error``."""
        for cell, share in self._around(tokens):
            visits = float(self.visits[cell])
            limit = LOG_BOUND if visits < YOUNG else STEP_LIMIT
            rate = max(LOCAL_RATE, 1.0 / (visits + TABLE_VISITS))
            self.local[cell] += rate * weight * share * max(-limit, min(limit, error))
            self.visits[cell] += weight * share
        self.low, self.high = float(np.minimum.reduce(self.local)), float(np.maximum.reduce(self.local))

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
        right = int(np.searchsorted(self.cells, tokens))
        if right == 0 or right == len(self.cells) or self.cells[right] == tokens:
            return [(min(right, len(self.cells) - 1), 1.0)]
        share = float((tokens - self.cells[right - 1]) / (self.cells[right] - self.cells[right - 1]))
        return [(right - 1, 1.0 - share), (right, share)]


Corners = list[tuple[Curve, float]]
"""Curves with the weights that interpolate a price between them."""


def _cells(tokens: tuple[int, ...]) -> np.ndarray:
    """Return the measured counts that carry a correction: both ends, others CELL_RATIO apart."""
    chosen = [tokens[0]]
    for count in tokens[1:-1]:
        if count >= CELL_RATIO * chosen[-1] and count * CELL_RATIO <= tokens[-1]:
            chosen.append(count)
    if len(tokens) > 1:
        chosen.append(tokens[-1])
    return np.array(chosen, dtype=np.float64)


def bracket(levels: list[int], value: float) -> list[tuple[int, float]]:
    """Return (level index, weight) pairs that interpolate ``value``; the nearest level outside the range."""
    if value <= levels[0]:
        return [(0, 1.0)]
    if value >= levels[-1]:
        return [(len(levels) - 1, 1.0)]
    right = bisect_left(levels, value)
    if levels[right] == value:
        return [(right, 1.0)]
    share = (value - levels[right - 1]) / (levels[right] - levels[right - 1])
    return [(right - 1, 1.0 - share), (right, share)]
