"""The price of a step: what will execute, whole, on this machine, corrected while serving."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from adaverify_contracts import CostTableError

from adaverify_verification.candidates import executed_tokens
from adaverify_verification.cost_table import CostCurve, CostTable
from adaverify_verification.monotone import isotonic

# Below this spread between the cheapest and the dearest point no budget can gain 1 %, and the measurement's own
# noise is about as large: the table carries no information.
FLAT_SPREAD = 0.01
# Corrections stay within [0.5, 2] of what was measured; one step moves them by at most STEP_LIMIT x the rate.
LOG_BOUND = math.log(2.0)
STEP_LIMIT = 0.25
COMMON_RATE = 0.05
LOCAL_RATE = 0.05
# A curve is continued this far past its last point with the slope of its upper half.
FAR = 1 << 24


@dataclass(slots=True)
class _Curve:
    """A measured curve with its online correction; ``xs``/``ys`` are what prices are read from."""

    tokens: np.ndarray
    base: np.ndarray
    local: np.ndarray
    xs: np.ndarray
    ys: np.ndarray

    @classmethod
    def of(cls, curve: CostCurve) -> _Curve:
        tokens = np.array(curve.tokens, dtype=np.float64)
        base = np.array(curve.seconds, dtype=np.float64)
        made = cls(tokens, base, np.zeros_like(base), np.append(tokens, tokens[-1] + FAR), np.append(base, 0.0))
        made.rebuild()
        return made

    def rebuild(self) -> None:
        """Apply the local correction, keep the curve never falling, continue it past its end."""
        values = isotonic(self.base * np.exp(self.local))
        self.ys[:-1] = values
        middle = (len(values) - 1) // 2
        run = self.tokens[-1] - self.tokens[middle]
        slope = (values[-1] - values[middle]) / run if run > 0 else 0.0
        self.ys[-1] = values[-1] + slope * FAR

    def knots(self, tokens: float) -> list[tuple[int, float]]:
        """Return the (point, weight) pairs that the price at ``tokens`` is read from."""
        right = int(np.searchsorted(self.tokens, tokens))
        if right == 0 or right == len(self.tokens) or self.tokens[right] == tokens:
            return [(min(right, len(self.tokens) - 1), 1.0)]
        share = float((tokens - self.tokens[right - 1]) / (self.tokens[right] - self.tokens[right - 1]))
        return [(right - 1, 1.0 - share), (right, share)]


def _bracket(levels: list[int], value: float) -> list[tuple[int, float]]:
    """Return (level index, weight) pairs that interpolate ``value``; the nearest level outside the range."""
    if value <= levels[0]:
        return [(0, 1.0)]
    if value >= levels[-1]:
        return [(len(levels) - 1, 1.0)]
    right = next(index for index, level in enumerate(levels) if level >= value)
    if levels[right] == value:
        return [(right, 1.0)]
    share = (value - levels[right - 1]) / (levels[right] - levels[right - 1])
    return [(right - 1, 1.0 - share), (right, share)]


class CostModel:
    """Prices steps from a table; ``priced`` is False, with the reason, where no table can tell budgets apart.

    Inside captured tiers a batch costs what the tier that holds it costs, never a line between two tiers. Past
    the last tier, and with no tiers, prices are interpolated between measured points. Requests and context are
    axes: linear between measured levels, the nearest level outside them.

    Args:
        table: the measured table, None when there is none.
        tiers: captured token counts, rising; empty in eager mode. The manager sets its own.
        online: False keeps the measured prices for ever (then equal tables mean equal plans on every rank).
    """

    def __init__(self, table: CostTable | None, tiers: tuple[int, ...] = (), *, online: bool = True) -> None:
        self.table = table
        self.online = online
        self._tiers = np.array(tiers, dtype=np.int64)
        self._scale = 0.0
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
        self.priced, self.reason = _priced(table)

    def set_tiers(self, tiers: tuple[int, ...]) -> None:
        """Price at these tiers from now on, for instance after a size failed to capture."""
        self._tiers = np.array(tiers, dtype=np.int64)

    def seconds(self, tokens: np.ndarray | int, requests: int, context: float) -> np.ndarray:
        """Return whole-step seconds float64 for ``tokens`` (any shape) of ``requests`` at mean KV ``context``.

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
        counts, seconds = zip(*self.table.draft, strict=True)
        return float(np.interp(requests, counts, seconds))

    @property
    def rejected_seconds(self) -> float:
        """Seconds that undoing one rejected draft token costs."""
        return 0.0 if self.table is None else self.table.rejected_seconds

    def refresh(self, tokens: int, requests: int, context: float, seconds: float) -> bool:
        """Credit one measured step to the shape that executed; return whether it counted.

        The error is split between a factor common to all prices (a machine that is slower as a whole moves
        budgets never visited too) and one a measured point. Both move slowly, every price stays within
        [0.5, 2] of the measured one, and curves stay never falling.
        """
        if not (self.online and self.priced and math.isfinite(seconds) and seconds > 0):
            return False
        executed = executed_tokens(np.array([tokens], dtype=np.int64), self._tiers)
        predicted = float(self.executed_seconds(executed, requests, context)[0])
        error = max(-STEP_LIMIT, min(STEP_LIMIT, math.log(seconds / predicted)))
        self._scale = max(-LOG_BOUND, min(LOG_BOUND, self._scale + COMMON_RATE * error))
        for curve, weight in self._corners(requests, context):
            for point, share in curve.knots(float(executed[0])):
                curve.local[point] += LOCAL_RATE * weight * share * error
        self._keep_bounds(requests, context)
        return True

    def _keep_bounds(self, requests: int, context: float) -> None:
        touched = {id(curve) for curve, _ in self._corners(requests, context)}
        low, high = -LOG_BOUND - self._scale, LOG_BOUND - self._scale
        for curve in (curve for row in self._curves for curve in row):
            outside = curve.local.min() < low or curve.local.max() > high
            if outside:
                np.clip(curve.local, low, high, out=curve.local)
            if outside or id(curve) in touched:
                curve.rebuild()

    def _corners(self, requests: int, context: float) -> list[tuple[_Curve, float]]:
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


def _priced(table: CostTable | None) -> tuple[bool, str]:
    if table is None:
        return False, "no cost table: run `adaverify profile`"
    spreads = [curve.seconds[-1] / curve.seconds[0] - 1.0 for curve in table.curves]
    if max(spreads) < FLAT_SPREAD:
        return False, (
            f"the cost table is flat: {max(spreads):.2%} between its cheapest and dearest size, "
            f"less than {FLAT_SPREAD:.0%}"
        )
    return True, f"{len(table.points)} measured points"
