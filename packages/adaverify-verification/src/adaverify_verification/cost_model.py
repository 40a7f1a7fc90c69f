"""The price of a step: what will execute, whole, on this machine, corrected while serving."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from statistics import median

import numpy as np

from adaverify_contracts import CostTableError
from adaverify_verification.candidates import executed_tokens
from adaverify_verification.cost_table import CostCurve, CostTable, priced_state
from adaverify_verification.monotone import isotonic

# A flat table whose corrected prices are this far apart is flat no more: several times the noise of a step.
REVIVED_SPREAD = 0.05
# Corrections stay within [0.5, 2] of what was measured.
LOG_BOUND = math.log(2.0)
# ... but for a table that was brought down to a far faster machine: what slowed its measurement did not slow
# every size alike, so its shape is a guess.
REBASED_BOUND = math.log(16.0)
# A step outside those bounds counts against the table and one inside for it; at this many more of the former
# the table is not this machine's any more, and back at none it is again. A paused process spoils a few steps.
STRAY_STEPS = 32
# A strayed table whose steps are all faster, for this many more of them, is brought down to their level: what
# disturbs a step only adds time, so it was the table's measurement that was disturbed, and not these steps.
REBASE_STEPS = 96
STRAYED = "measured step times left the table's bounds, profile again"
# One step's error counts at most this much, so that a stall is not taken for a price ...
STEP_LIMIT = 0.25
COMMON_RATE = 0.05
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
class _Curve:
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
    def of(cls, curve: CostCurve) -> _Curve:
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


Corners = list[tuple[_Curve, float]]
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


def _bracket(levels: list[int], value: float) -> list[tuple[int, float]]:
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


class CostModel:
    """Prices steps from a table; ``priced`` is False, with the reason, where no table can tell budgets apart.

    Also while served steps take less than half or more than twice what was measured, for a sustained run: no
    bounded correction follows them, so the prices are another machine's. It is True again once they agree, or
    once the table was brought down to a machine that stays faster; a flat table is priced once corrections
    have told its sizes apart. No table switches trimming off for good while prices are refreshed.

    Inside captured tiers a batch costs what the tier that holds it costs, never a line between two tiers.
    Past the last tier, and with no tiers, prices are interpolated between measured points. Requests and
    context are axes: linear between measured levels, the nearest level outside them.

    Args:
        table: the measured table, None when there is none.
        tiers: captured token counts, rising; empty in eager mode. The manager sets its own.
        online: False keeps the measured prices for ever and judges them by no step time (then equal tables
            mean equal plans on every rank).

    Raises:
        CostTableError: ``table`` is something else.
    """

    def __init__(self, table: CostTable | None, tiers: tuple[int, ...] = (), *, online: bool = True) -> None:
        if table is not None and not isinstance(table, CostTable):
            raise CostTableError(
                "a cost model was given what is no cost table",
                arrived=table,
                allowed="a CostTable, or None when there is none",
                remedy="build it with CostTable.load(path, fingerprint) or CostTable.from_points(...)",
            )
        self.table = table
        self.online = online
        self.set_tiers(tiers)
        self._scale = 0.0
        self._refreshed = 0
        self._levels: list[int] = []
        self._contexts: list[list[int]] = []
        self._curves: list[list[_Curve]] = []
        for curve in table.curves if table is not None else ():
            if not self._levels or self._levels[-1] != curve.requests:
                self._levels.append(curve.requests)
                self._contexts.append([])
                self._curves.append([])
            self._contexts[-1].append(curve.context)
            self._curves[-1].append(_Curve.of(curve))
        self._usable, self._why = priced_state(table)
        # Prices of drafting by requests: few numbers of requests are ever served.
        self._drafting: dict[int, float] = {}
        # What a rebase made of the table's own times.
        self._level = 1.0
        self._bound = LOG_BOUND
        self._strays = 0
        self._faster: list[float] = []
        self.strayed = False

    @property
    def priced(self) -> bool:
        """Whether the prices can tell budgets apart and are this machine's."""
        return self._usable and not self.strayed

    @property
    def reason(self) -> str:
        """Why the model is priced or not."""
        return STRAYED if self.strayed else self._why

    @property
    def flat(self) -> bool:
        """Whether there are prices and they are all the same: they may be wrong, and steps can tell."""
        return not self._usable and self.table is not None and not self.strayed

    def untried(self, executed: int, requests: int, context: float) -> bool:
        """Return whether too few steps of this size were credited to trust its price against the others'."""
        if not self.online or self.table is None:
            return False
        return all(curve.visits_at(executed) < YOUNG for curve, _ in self._corners(requests, context))

    def set_tiers(self, tiers: tuple[int, ...]) -> None:
        """Price at these tiers from now on, for instance after a size failed to capture."""
        self._tiers = np.array(tiers, dtype=np.int64)
        self._sizes = self._tiers.tolist()

    def seconds(self, tokens: np.ndarray | int, requests: int, context: float) -> np.ndarray:
        """Return whole-step seconds, float64 of the shape of ``tokens``, at mean KV length ``context``.

        Drafting is not in it where the table prices it apart (``draft_seconds``).

        Raises:
            CostTableError: there is no table.
        """
        counts = np.asarray(tokens, dtype=np.int64)
        return self.executed_seconds(executed_tokens(counts, self._tiers), requests, context)

    def executed_seconds(self, executed: np.ndarray, requests: int, context: float) -> np.ndarray:
        """Return seconds for token counts that are already what executes, padding included."""
        total = np.zeros(np.shape(executed), dtype=np.float64)
        for curve, weight in self._corners(requests, context):
            total += weight * np.interp(executed, curve.xs, curve.ys)
        return total * math.exp(self._scale)

    def draft_seconds(self, requests: int) -> float:
        """Return the seconds of drafting for ``requests``, 0.0 where the table does not price it apart."""
        if self.table is None or not self.table.draft:
            return 0.0
        price = self._drafting.get(requests)
        if price is None:
            counts, seconds = zip(*self.table.draft, strict=True)
            price = self._drafting[requests] = float(np.interp(requests, counts, seconds))
        return price * self._level

    @property
    def rejected_seconds(self) -> float:
        """Seconds that undoing one rejected draft token costs."""
        return 0.0 if self.table is None else self.table.rejected_seconds * self._level

    def refresh(
        self, tokens: int, requests: int, context: float, seconds: float, whole: float | None = None
    ) -> bool:
        """Credit one measured step to the shape that executed; return whether it counted.

        ``seconds`` are without drafting, ``whole`` with it: where drafting is priced apart and that price is
        as wrong as the others, only the whole step tells the machine's level.

        The error is split between a factor common to all prices (a machine that is slower as a whole moves
        budgets never visited too) and one a measured point. Both move slowly, every price stays within
        [0.5, 2] of the measured one, and curves stay never falling. A sustained run of steps outside those
        bounds sets ``strayed``; when they stay faster, the whole table is brought down to them.
        """
        if not (self.online and self.table is not None and math.isfinite(seconds) and seconds > 0):
            return False
        executed = float(self._executed(tokens))
        corners = self._corners(requests, context)
        measured = sum(weight * curve.at(executed, curve.measured) for curve, weight in corners)
        error = math.log(seconds / measured)
        self._judge(error, math.log(whole / (measured + self.draft_seconds(requests))) if whole else error)
        predicted = sum(weight * curve.at(executed, curve.ys) for curve, weight in corners)
        error = math.log(seconds / (predicted * math.exp(self._scale)))
        bounded = max(-STEP_LIMIT, min(STEP_LIMIT, error))
        rate = max(COMMON_RATE, 1.0 / (self._refreshed + TABLE_VISITS))
        self._scale = max(-self._bound, min(self._bound, self._scale + rate * bounded))
        self._refreshed += 1
        for curve, weight in corners:
            curve.correct(executed, error, weight)
        self._keep_bounds(corners)
        if not self._usable:
            self._revive(corners)
        return True

    def _executed(self, tokens: int) -> int:
        """Return what executes for one batch, as ``executed_tokens`` does."""
        index = bisect_left(self._sizes, tokens)
        return self._sizes[index] if index < len(self._sizes) else tokens

    def _judge(self, error: float, whole: float) -> None:
        """Count a step's log error against the measured price for or against the table.

        ``whole`` is that of the whole step, drafting included, whose price may be as wrong.
        """
        outside = abs(error) > self._bound
        self._strays = min(STRAY_STEPS, self._strays + 1) if outside else max(0, self._strays - 1)
        if self._strays in (0, STRAY_STEPS):
            self.strayed = self._strays == STRAY_STEPS
        if self.strayed and outside and error < 0:
            self._faster.append(whole)
        else:
            self._faster.clear()
        if len(self._faster) == REBASE_STEPS:
            self._rebase(math.exp(median(self._faster)))

    def _rebase(self, factor: float) -> None:
        """Bring all prices down to steps that are ``factor`` of them; corrections begin anew."""
        for curve in (curve for row in self._curves for curve in row):
            curve.rebase(factor)
        self._level *= factor
        self._bound, self._scale, self._refreshed = REBASED_BOUND, 0.0, 0
        self._strays, self.strayed = 0, False
        self._faster.clear()

    def _revive(self, corners: Corners) -> None:
        """Price steps from now on where corrections have told the sizes of a flat table apart."""
        spread = max(curve.spread() for curve, _ in corners)
        if spread >= REVIVED_SPREAD:
            self._usable = True
            self._why = f"the cost table is flat, and served steps are {spread:.0%} apart"

    def _keep_bounds(self, corners: Corners) -> None:
        touched = [curve for curve, _ in corners]
        low, high = -self._bound - self._scale, self._bound - self._scale
        for row in self._curves:
            for curve in row:
                if curve.clip(low, high) and not any(curve is one for one in touched):
                    curve.rebuild()
        for curve in touched:
            curve.rebuild()

    def _corners(self, requests: int, context: float) -> Corners:
        if not self._levels:
            raise CostTableError(
                "a step cannot be priced without a cost table",
                arrived="no table",
                allowed="a table with at least one measured point",
                remedy="ask CostModel.priced first, or run `adaverify profile`",
            )
        return [
            (self._curves[row][column], outer * inner)
            for row, outer in _bracket(self._levels, requests)
            for column, inner in _bracket(self._contexts[row], context)
        ]
