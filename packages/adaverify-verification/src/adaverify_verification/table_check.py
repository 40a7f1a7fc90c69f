"""Whether a stored cost table still has the shape of this machine's step times."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from adaverify_contracts import CostTableError
from adaverify_verification.contention import ContentionWatch
from adaverify_verification.cost_table import CostCurve, CostTable
from adaverify_verification.disturbance import Shape, faster_half, run_rounds, spelt, unquiet

Outcome = Literal["unchecked", "kept", "rescaled", "distorted", "undecided", "outrun"]
# A plan is an argmax of ratios of prices: a common factor changes nothing, and a ratio of two prices that is
# off by this much moves budgets. Points measured twice on a quiet machine agree within 5 %.
SHAPE_BOUND = 0.15
# Clocks move by less than this between two quiet minutes; the prices follow the rest while serving.
SCALE_BOUND = 0.05
# What disturbs a step only adds time: a machine that is this much faster than its table was not quiet when
# the table was measured, and what was added then is no common factor. A quiet clock moves by less.
FASTER_BOUND = 0.75
ROUNDS = 4
# A shape that looks wrong is measured this often more before the table is given up.
FURTHER_ROUNDS = 8
# Seconds that one point may take by the table's own price, warm-up and first rounds together: three points
# stay near a second. Where no two points of one curve are that cheap, the ends of the cheapest curve do.
POINT_SECONDS = 0.4


@dataclass(frozen=True, slots=True)
class Probe:
    """One point measured again: its shape, the seconds in the table and those of now."""

    tokens: int
    requests: int
    context: int
    stored: float
    now: float

    @property
    def ratio(self) -> float:
        """Seconds of now by those in the table."""
        return self.now / self.stored


@dataclass(frozen=True, slots=True)
class TableCheck:
    """What came of measuring a few points of a table again.

    Attributes:
        outcome: ``unchecked`` (no point of the table can run here), ``kept``, ``rescaled`` (all points moved
            by one factor), ``outrun`` (the machine is far faster than the table, which was measured on a busy
            one: measure anew), ``distorted`` (the shape is another one: measure anew) or ``undecided`` (the
            shape looks wrong, but the machine is too busy now to tell; keep the table).
        probes: the points.
        factor: median of their ratios, 1 without a point.
        distortion: the largest ratio by the smallest, minus 1; 0 is the stored shape.
    """

    outcome: Outcome
    probes: tuple[Probe, ...] = ()
    factor: float = 1.0
    distortion: float = 0.0

    def words(self) -> str:
        """Return the outcome with its numbers, one clause."""
        if not self.probes:
            return "not checked: no point of it can run here"
        shape = f"{len(self.probes)} points agree with each other within {self.distortion:.0%}"
        if self.outcome == "kept":
            return f"checked: {shape}"
        if self.outcome == "rescaled":
            return f"checked: {shape}, all times rescaled by {self.factor:.2f}"
        if self.outcome == "outrun":
            times = f"steps take {self.factor:.2f} of its times ({FASTER_BOUND:.2f} allowed)"
            return f"{times}, {_moved(self.probes[-1])}: it was measured on a busy machine"
        least = min(self.probes, key=lambda one: one.ratio)
        most = max(self.probes, key=lambda one: one.ratio)
        busy = "; the machine is too busy now to tell" if self.outcome == "undecided" else ""
        return (
            f"its shape is off by {self.distortion:.0%} ({SHAPE_BOUND:.0%} allowed): {_moved(most)}, "
            f"{_moved(least)}{busy}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {**asdict(self), "bound": SHAPE_BOUND}

    @property
    def misfit(self) -> bool:
        """Whether the table is to be measured anew."""
        return self.outcome in ("distorted", "outrun")


def check_table(
    table: CostTable,
    measure: Callable[[int, int, int], float],
    *,
    max_requests: int,
    max_context: int,
    watch: ContentionWatch | None = None,
) -> TableCheck:
    """Measure up to three points of ``table`` again and compare, up to one common factor.

    The points are the largest affordable one, the smallest of the same batch, and the one most out of line
    with its neighbours. When their ratios differ by more than ``SHAPE_BOUND``, further rounds decide, unless
    they disagree or wait for a processor themselves. A machine that is far faster than the table gives it
    away too: a steady neighbour of the measurement is visible in nothing else.

    Args:
        table: the stored table.
        measure: ``measure(tokens, requests, context)`` runs one whole step and returns seconds.
        max_requests: largest number of requests that can run.
        max_context: longest KV length that can run.
        watch: sees waiting for a processor; what this system tells about it when None.

    Raises:
        CostTableError: a run returned something that is not a positive finite time.
    """
    stored = choose_probes(table, max_requests=max_requests, max_context=max_context)
    if not stored:
        return TableCheck("unchecked")
    shapes = list(stored)
    watch = ContentionWatch() if watch is None else watch
    waited: dict[Shape, list[float]] = {}

    def timed(shape: Shape) -> float:
        seconds, share = watch.around(lambda: float(measure(*shape)))
        waited.setdefault(shape, []).append(share)
        if not math.isfinite(seconds) or seconds <= 0:
            raise CostTableError(
                f"the step of {spelt(shape)} returned no time",
                arrived=seconds,
                allowed="finite seconds > 0",
                remedy="time the whole step with a monotonic clock after the device has finished",
            )
        return seconds

    samples: dict[Shape, list[float]] = {}
    for shape in shapes:
        timed(shape)
    waited.clear()
    run_rounds(shapes, timed, ROUNDS, samples)
    found = _judge(stored, samples)
    if found.outcome == "distorted":
        run_rounds(shapes, timed, FURTHER_ROUNDS, samples)
        found = _judge(stored, samples)
        if found.outcome == "distorted" and unquiet(samples, waited):
            return TableCheck("undecided", found.probes, found.factor, found.distortion)
    return found


def choose_probes(table: CostTable, *, max_requests: int, max_context: int) -> dict[Shape, float]:
    """Return the shapes to measure again, with the seconds measured for them, in the table's order."""
    curves = [one for one in table.curves if one.requests <= max_requests and one.context <= max_context]
    if not curves:
        return {}
    stored = {
        (tokens, curve.requests, curve.context): seconds
        for curve in curves
        for tokens, seconds in zip(curve.tokens, curve.measured, strict=True)
    }
    limit = POINT_SECONDS / (ROUNDS + 1)
    affordable = [shape for shape, seconds in stored.items() if seconds <= limit]
    ends = _ends(affordable) if affordable else ()
    if len(ends) < 2:
        cheapest = min(curves, key=lambda curve: curve.measured[-1])
        ends = _ends([shape for shape in stored if shape[1:] == (cheapest.requests, cheapest.context)])
        affordable = list(ends)
    lines = {shape: off for curve in curves for shape, off in _out_of_line(curve).items()}
    chosen = {*ends, max(affordable, key=lambda shape: lines[shape])}
    return {shape: stored[shape] for shape in stored if shape in chosen}


def _ends(shapes: list[Shape]) -> tuple[Shape, ...]:
    """Return the shape of most tokens and the smallest one of its batch; one where there is no other."""
    largest = max(shapes)
    return tuple(dict.fromkeys((min(shape for shape in shapes if shape[1:] == largest[1:]), largest)))


def _out_of_line(curve: CostCurve) -> dict[Shape, float]:
    """Return how far each point lies off the line of its neighbours, as an absolute log; 0 at the ends."""
    count, times = curve.tokens, [math.log(seconds) for seconds in curve.measured]
    off = dict.fromkeys(range(len(count)), 0.0)
    for index in range(1, len(count) - 1):
        share = math.log(count[index] / count[index - 1]) / math.log(count[index + 1] / count[index - 1])
        off[index] = abs(times[index] - (1 - share) * times[index - 1] - share * times[index + 1])
    return {(count[index], curve.requests, curve.context): value for index, value in off.items()}


def _judge(stored: dict[Shape, float], samples: dict[Shape, list[float]]) -> TableCheck:
    probes = tuple(
        Probe(*shape, stored=seconds, now=faster_half(samples[shape])) for shape, seconds in stored.items()
    )
    ratios = [probe.ratio for probe in probes]
    factor, distortion = median(ratios), max(ratios) / min(ratios) - 1.0
    if factor < FASTER_BOUND:
        outcome: Outcome = "outrun"
    elif distortion > SHAPE_BOUND:
        outcome = "distorted"
    else:
        outcome = "rescaled" if abs(factor - 1.0) > SCALE_BOUND else "kept"
    return TableCheck(outcome, probes, factor, distortion)


def _moved(probe: Probe) -> str:
    where = spelt((probe.tokens, probe.requests, probe.context))
    return f"{where} was {1e3 * probe.stored:.3g} ms and is {1e3 * probe.now:.3g}"
