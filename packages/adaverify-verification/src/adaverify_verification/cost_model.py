"""The price of a step: what will execute, whole, on this machine, corrected while serving."""

from __future__ import annotations

import math
from bisect import bisect_left
from statistics import median

import numpy as np

from adaverify_contracts import CostTableError
from adaverify_verification.candidates import executed_tokens
from adaverify_verification.cost_curve import LOG_BOUND, STEP_LIMIT, TABLE_VISITS, YOUNG, PricedCurve
from adaverify_verification.cost_table import CostTable, priced_state
from adaverify_verification.host_floor import HostFloor, host_bound

# A flat table whose corrected prices are this far apart is flat no more: several times the noise of a step.
REVIVED_SPREAD = 0.05
# A table that was brought down to a far faster machine has wider bounds than others: what slowed its
# measurement did not slow every size alike, so its shape is a guess.
REBASED_BOUND = math.log(16.0)
# A step outside those bounds counts against the table and one inside for it; at this many more of the former
# the table is not this machine's any more, and back at none it is again. A paused process spoils a few steps.
STRAY_STEPS = 32
# A strayed table whose steps are all faster, for this many more of them, is brought down to their level: what
# disturbs a step only adds time, so it was the table's measurement that was disturbed, and not these steps.
REBASE_STEPS = 96
STRAYED = "measured step times left the table's bounds, profile again"
# The share of a step's error that moves all prices at once. Large: a common factor chooses no budget, and
# what it does not follow is taken for the price of the size that ran. With 0.05, on a shared machine whose
# speed moves by a third within seconds, full steps were 10 % faster than priced, and with 0.25 the same
# recorded times (35 full steps among 120) leave 2 %.
COMMON_RATE = 0.25

Corners = list[tuple[PricedCurve, float]]
"""Curves with the weights that interpolate a price between them."""


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
        self._set_scale(0.0)
        self._refreshed = 0
        self._levels: list[int] = []
        self._contexts: list[list[int]] = []
        self._curves: list[list[PricedCurve]] = []
        for curve in table.curves if table is not None else ():
            if not self._levels or self._levels[-1] != curve.requests:
                self._levels.append(curve.requests)
                self._contexts.append([])
                self._curves.append([])
            self._contexts[-1].append(curve.context)
            self._curves[-1].append(PricedCurve(curve))
        bare = () if table is None else table.bare_curves
        self._bare_contexts = [curve.context for curve in bare]
        self._bare_curves = [PricedCurve(curve) for curve in bare]
        self._every = [*(curve for row in self._curves for curve in row), *self._bare_curves]
        # No curve's correction is lower or higher, so that bounds are kept without asking every curve.
        self._low = self._high = 0.0
        # The corners found last: a step is priced when it is planned and when it is observed.
        self._asked: tuple[int, float] | None = None
        self._found: Corners = []
        # Fixed by the table: whether undoing a rejected draft has a price, and whether drafting nothing has.
        self.undoes = table is not None and table.rejected_seconds > 0
        self.prices_bare = bool(bare) or (table is not None and bool(table.draft))
        self._usable, self._why = priced_state(table)
        # Prices of drafting by requests: few numbers of requests are ever served.
        self._drafting: dict[int, float] = {}
        # What a rebase made of the table's own times.
        self._level = 1.0
        self._bound = LOG_BOUND
        self._strays = 0
        self._faster: list[float] = []
        self._floor = HostFloor()
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
        """Return whether too few steps of this size were credited to trust its price against the others'.

        A price that is the host's own time is not the table's word, and no step of the size could teach it.
        """
        if not self.online or self.table is None:
            return False
        if self._floor.binds(self.executed_seconds(np.array([executed]), requests, context), requests):
            return False
        return all(curve.visits_at(executed) < YOUNG for curve, _ in self._corners(requests, context))

    def set_tiers(self, tiers: tuple[int, ...], bare: tuple[int, ...] = ()) -> None:
        """Price at these tiers from now on, drafting-free steps at ``bare``, for instance after a failure."""
        self._tiers = np.array(tiers, dtype=np.int64)
        self._sizes, self._bare_sizes = list(tiers), list(bare)

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
        corners = self._corners(requests, context)
        curve, weight = corners[0]
        total = curve.prices(executed)
        # One alone lies between no two levels, and its weight is 1.
        if len(corners) > 1:
            total = weight * total
            for curve, weight in corners[1:]:
                total += weight * curve.prices(executed)
        return self._floor.under(total * self._factor, requests)

    def draft_seconds(self, requests: int) -> float:
        """Return the seconds of drafting for ``requests``, 0.0 where the table does not price it apart."""
        if self.table is None or not self.table.draft:
            return 0.0
        price = self._drafting.get(requests)
        if price is None:
            counts, seconds = zip(*self.table.draft, strict=True)
            price = self._drafting[requests] = float(np.interp(requests, counts, seconds))
        return price * self._level

    def bare_seconds(self, requests: int, context: float) -> float | None:
        """Return seconds of a captured step that drafts nothing, None where the table has no such prices."""
        if not self._bare_curves:
            return None
        executed, corners = self._executed(requests, bare=True), self._corners(requests, context, bare=True)
        price = sum(weight * curve.at(executed, curve.ys) for curve, weight in corners)
        return max(price * math.exp(self._scale), self._floor.seconds(requests))

    @property
    def rejected_seconds(self) -> float:
        """Seconds that undoing one rejected draft token costs."""
        return 0.0 if self.table is None else self.table.rejected_seconds * self._level

    def refresh(
        self,
        tokens: int,
        requests: int,
        context: float,
        seconds: float,
        whole: float | None = None,
        *,
        bare: bool = False,
        host: float | None = None,
    ) -> bool:
        """Credit one measured step to the shape that executed; return whether it counted.

        ``bare`` says that it was a captured step that drafts nothing; it teaches their prices, and the level
        that both kinds share.

        ``seconds`` are without drafting, ``whole`` with it: where drafting is priced apart and that price is
        as wrong as the others, only the whole step tells the machine's level. ``host`` are those of the whole
        step that the host was busy for, None where nobody knows: no step of as many requests is priced below
        them, and one that took no longer kept the device waiting and says nothing of its prices.

        The error is split between a factor common to all prices (a machine that is slower as a whole moves
        budgets never visited too) and one a measured point. The first follows within a few steps, the second
        slowly; every price stays within
        [0.5, 2] of the measured one, and curves stay never falling. A sustained run of steps outside those
        bounds sets ``strayed``; when they stay faster, the whole table is brought down to them.
        """
        if not (self.online and self.table is not None and math.isfinite(seconds) and seconds > 0):
            return False
        if bare and not self._bare_curves:
            return False
        if host is not None:
            self._floor.learn(requests, host)
            if host_bound(host, whole or seconds):
                return False
        executed = float(self._executed(tokens, bare=bare))
        corners = self._corners(requests, context, bare=bare)
        measured = sum(weight * curve.at(executed, curve.measured) for curve, weight in corners)
        error = math.log(seconds / measured)
        self._judge(error, math.log(whole / (measured + self.draft_seconds(requests))) if whole else error)
        predicted = sum(weight * curve.at(executed, curve.ys) for curve, weight in corners)
        error = math.log(seconds / (predicted * math.exp(self._scale)))
        bounded = max(-STEP_LIMIT, min(STEP_LIMIT, error))
        rate = max(COMMON_RATE, 1.0 / (self._refreshed + TABLE_VISITS))
        self._set_scale(max(-self._bound, min(self._bound, self._scale + rate * bounded)))
        self._refreshed += 1
        changed = [(curve, curve.correct(executed, error, weight)) for curve, weight in corners]
        self._keep_bounds(corners)
        for curve, points in changed:
            curve.rebuild(points)
        if not self._usable and not bare:
            self._revive(corners)
        return True

    def _set_scale(self, scale: float) -> None:
        """Move all prices at once, to ``exp(scale)`` of what each curve says."""
        self._scale = scale
        # An array without a dimension: NumPy makes one of a number in every call, which takes a third of it.
        self._factor = np.array(math.exp(scale))

    def _keep_bounds(self, changed: Corners) -> None:
        """Keep every price within bounds of the measured one after the corrections of ``changed`` moved."""
        low, high = -self._bound - self._scale, self._bound - self._scale
        self._low = min(self._low, *(curve.low for curve, _ in changed))
        self._high = max(self._high, *(curve.high for curve, _ in changed))
        if self._low >= low and self._high <= high:
            return
        for curve in self._every:
            if curve.clip(low, high):
                curve.rebuild()
        self._low = min(curve.low for curve in self._every)
        self._high = max(curve.high for curve in self._every)

    def _executed(self, tokens: int, *, bare: bool = False) -> int:
        """Return what executes for one batch, as ``executed_tokens`` does."""
        sizes = self._bare_sizes if bare else self._sizes
        index = bisect_left(sizes, tokens)
        return sizes[index] if index < len(sizes) else tokens

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
        for curve in self._every:
            curve.rebase(factor)
        self._low = self._high = 0.0
        self._level *= factor
        self._bound, self._refreshed = REBASED_BOUND, 0
        self._set_scale(0.0)
        self._strays, self.strayed = 0, False
        self._faster.clear()

    def _revive(self, corners: Corners) -> None:
        """Price steps from now on where corrections have told the sizes of a flat table apart."""
        spread = max(curve.spread() for curve, _ in corners)
        if spread >= REVIVED_SPREAD:
            self._usable = True
            self._why = f"the cost table is flat, and served steps are {spread:.0%} apart"

    def _corners(self, requests: int, context: float, *, bare: bool = False) -> Corners:
        if bare:
            return [(self._bare_curves[at], weight) for at, weight in _bracket(self._bare_contexts, context)]
        if not self._levels:
            raise CostTableError(
                "a step cannot be priced without a cost table",
                arrived="no table",
                allowed="a table with at least one measured point",
                remedy="ask CostModel.priced first, or run `adaverify profile`",
            )
        if self._asked != (requests, context):
            self._asked = (requests, context)
            self._found = [
                (self._curves[row][column], outer * inner)
                for row, outer in _bracket(self._levels, requests)
                for column, inner in _bracket(self._contexts[row], context)
            ]
        return self._found
