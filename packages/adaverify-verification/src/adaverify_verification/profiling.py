"""Measure a cost table: interleaved runs over the shapes a decode step can really have."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from adaverify_contracts import CostTableError, Limits
from adaverify_verification.candidates import executed_tokens
from adaverify_verification.contention import ContentionWatch
from adaverify_verification.cost_points import Point
from adaverify_verification.cost_table import CostTable
from adaverify_verification.disturbance import (
    RETRIES,
    Shape,
    faster_half,
    run_rounds,
    settle,
    slow_rounds,
    spelt,
    unquiet_words,
)
from adaverify_verification.fingerprint import Fingerprint

# Sizes are int32 everywhere.
_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ProfileGrid:
    """Which shapes to measure, and how often.

    Attributes:
        requests: numbers of decode requests, rising.
        contexts: KV lengths a request, rising.
        tokens: query token counts to measure for every number of requests that can reach them; with tiers
            these are the tiers.
        draft_tokens: K; no profiled decode query is longer than K + 1.
        padded: True when ``tokens`` are captured tiers, so that a smaller batch executes the next tier up.
        warmup: unrecorded runs of each shape before the first recorded one.
        repeats: recorded rounds over all shapes, interleaved.
        retries: further passes over shapes in doubt, at most.
        bare: request counts of captured steps that draft nothing; none where there are no such steps.

    Raises:
        CostTableError: a field has the wrong type or is out of range, or nothing would be measured.
    """

    requests: tuple[int, ...]
    contexts: tuple[int, ...]
    tokens: tuple[int, ...]
    draft_tokens: int
    padded: bool = False
    warmup: int = 2
    repeats: int = 5
    retries: int = RETRIES
    bare: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, lowest in (("requests", 1), ("contexts", 0), ("tokens", 1), ("bare", 1)):
            values = getattr(self, name)
            if not _rises(values, lowest):
                raise CostTableError(
                    f"ProfileGrid.{name} is not a rising axis",
                    arrived=values,
                    allowed=f"a tuple of strictly rising ints in {lowest} .. {_LARGEST}",
                    remedy="sort the axis and drop duplicates",
                )
        for name, lowest in (("draft_tokens", 0), ("warmup", 0), ("repeats", 1), ("retries", 0)):
            if not _counts(getattr(self, name), lowest):
                raise CostTableError(
                    f"ProfileGrid.{name} is out of range",
                    arrived=getattr(self, name),
                    allowed=f"an int in {lowest} .. {_LARGEST}",
                    remedy="build it with ProfileGrid.covering(limits, ...)",
                )
        padded: object = self.padded
        if not self.requests or not self.contexts or not isinstance(padded, bool):
            raise CostTableError(
                "ProfileGrid measures nothing, or padded is neither True nor False",
                arrived=self,
                allowed="at least one number of requests and one context, and a bool",
                remedy="build it with ProfileGrid.covering(limits, ...)",
            )

    @classmethod
    def covering(
        cls, limits: Limits, *, tiers: tuple[int, ...] = (), contexts: tuple[int, ...] | None = None
    ) -> ProfileGrid:
        """Return the grid that covers every decode step of ``limits``, with powers of two on each axis."""
        if contexts is None:
            contexts = tuple(sorted({min(256, limits.max_model_len), limits.max_model_len}))
        requests = _powers(limits.max_requests)
        tokens = tiers or _powers(limits.max_tokens)
        return cls(requests, contexts, tokens, limits.draft_tokens, padded=bool(tiers))

    def shapes(self) -> tuple[Shape, ...]:
        """Return the (tokens, requests, context) to run, each request 1 .. K + 1 tokens long."""
        found: list[Shape] = []
        for requests in self.requests:
            longest = requests * (self.draft_tokens + 1)
            inside = {tokens for tokens in self.tokens if requests <= tokens <= longest}
            ends = {longest} if self.padded else {requests, longest}
            if self.padded and not any(tokens >= requests for tokens in inside):
                ends.add(requests)
            found.extend((tokens, requests, context) for context in self.contexts for tokens in inside | ends)
        return tuple(sorted(found, key=lambda shape: (shape[1], shape[2], shape[0])))

    def bare_shapes(self) -> tuple[Shape, ...]:
        """Return the (tokens, requests, context) of steps that draft nothing: one token a request."""
        return tuple((count, count, context) for context in self.contexts for count in self.bare)

    @property
    def most_timings(self) -> int:
        """Runs of a step that measuring this grid takes at most, unrecorded ones included."""
        shapes = len(self.shapes()) + len(self.bare_shapes())
        return shapes * (self.warmup + self.repeats * (1 + self.retries))

    def executed(self, tokens: int) -> int:
        """Return the size that a batch of ``tokens`` executes."""
        if not self.padded:
            return tokens
        return int(executed_tokens(np.array([tokens]), np.array(self.tokens))[0])


def _powers(highest: int) -> tuple[int, ...]:
    """Return 1, 2, 4 ... and ``highest``."""
    return tuple(sorted({1 << bit for bit in range(highest.bit_length()) if 1 << bit <= highest} | {highest}))


def profile_cost(
    measure: Callable[[int, int, int], float],
    grid: ProfileGrid,
    fingerprint: Fingerprint,
    *,
    measure_draft: Callable[[int], float] | None = None,
    measure_bare: Callable[[int, int, int], float] | None = None,
    progress: Callable[[int, int], None] | None = None,
    watch: ContentionWatch | None = None,
) -> CostTable:
    """Return a measured table.

    Every shape is warmed up, then all shapes run once a round, forwards and backwards in turn, so that a
    burst falls on few rounds of many shapes and a clock that drifts moves all of them alike. The median of
    each shape's faster half of rounds counts: whatever disturbs a step (another process, a pause) only ever
    adds time, so the error has one sign, and a plain median is wrong once half of the rounds are disturbed,
    the faster half's only past three quarters. The minimum would take one lucky round for the price.

    Shapes whose rounds do not agree, whose threads waited for a processor, or that break the never-falling
    curve, are measured again a bounded number of times (``disturbance``). Those that never come to rest are
    named in the table's ``disturbed``, shapes with single slow rounds in its ``outliers``.

    Args:
        measure: ``measure(tokens, requests, context)`` runs one whole step, padding to the executed size
            itself, and returns seconds.
        grid: what to measure.
        fingerprint: the setup it is measured on.
        measure_draft: ``measure_draft(requests)`` returns seconds of drafting alone, where the engine can
            skip it; ``measure`` must then leave it out.
        measure_bare: as ``measure``, of captured steps that draft nothing, where ``grid.bare`` has any: there
            ``measure`` includes the drafting.
        progress: called as ``progress(done, total)`` after each recorded run.
        watch: sees a neighbour that slows all rounds alike; what this system tells about waiting when None.

    Raises:
        CostTableError: a run returned something that is not a positive finite time; names the shape.
    """
    watch = ContentionWatch() if watch is None else watch
    steps = _Rounds(grid, grid.shapes(), measure, watch)
    free = _Rounds(grid, () if measure_bare is None else grid.bare_shapes(), measure_bare or measure, watch)
    counted = _Counted(progress, (steps, free))
    found, quiet = steps.run(counted, lambda shape: (grid.executed(shape[0]), *shape[1:]))
    # Requests are no axis of steps that draft nothing: their tokens are.
    found_free, quiet_free = free.run(counted, lambda shape: (shape[0], 0, shape[2]))
    draft = [] if measure_draft is None else _profile_draft(measure_draft, grid)
    return CostTable.from_points(
        fingerprint,
        [(grid.executed(tokens), *rest) for tokens, *rest in found],
        draft=draft,
        bare=found_free,
        noted=(*slow_rounds(steps.samples), *slow_rounds(free.samples)),
        disturbed=(*quiet, *quiet_free),
    )


class _Counted:
    """Progress over several passes."""

    def __init__(self, progress: Callable[[int, int], None] | None, passes: Sequence[_Rounds]) -> None:
        self._progress, self._passes = progress, passes

    def __call__(self) -> None:
        if self._progress is not None:
            done = sum(one.done for one in self._passes)
            self._progress(done, sum(one.total for one in self._passes))


class _Rounds:
    """Recorded rounds of some shapes, those in doubt measured again."""

    def __init__(
        self,
        grid: ProfileGrid,
        shapes: tuple[Shape, ...],
        measure: Callable[[int, int, int], float],
        watch: ContentionWatch,
    ) -> None:
        self._grid, self._shapes, self._measure, self._watch = grid, shapes, measure, watch
        self.samples: dict[Shape, list[float]] = {}
        self._waited: dict[Shape, list[float]] = {}
        self.done, self.total = 0, len(shapes) * grid.repeats

    def run(
        self, counted: Callable[[], None], executed: Callable[[Shape], Shape]
    ) -> tuple[list[Point], tuple[str, ...]]:
        """Return measured points of every shape, and those that never came to rest in words."""

        def timed(shape: Shape) -> float:
            seconds, share = self._watch.around(lambda: _seconds(self._measure(*shape), shape))
            self._waited.setdefault(shape, []).append(share)
            self.done += 1
            counted()
            return seconds

        def again(doubtful: Sequence[Shape]) -> None:
            self.total += len(doubtful) * self._grid.repeats
            run_rounds(doubtful, timed, self._grid.repeats, self.samples)

        for shape in self._shapes:
            for _ in range(self._grid.warmup):
                self._measure(*shape)
        run_rounds(self._shapes, timed, self._grid.repeats, self.samples)
        unquiet = settle(self.samples, again, executed, self._waited, retries=self._grid.retries)
        points = [(*shape, faster_half(self.samples[shape])) for shape in self._shapes]
        return points, tuple(unquiet_words(unquiet, self.samples, self._waited))


def _profile_draft(measure_draft: Callable[[int], float], grid: ProfileGrid) -> list[tuple[int, float]]:
    for requests in grid.requests:
        for _ in range(grid.warmup):
            measure_draft(requests)
    rounds = [
        [_seconds(measure_draft(requests), (requests, requests, 0)) for requests in grid.requests]
        for _ in range(grid.repeats)
    ]
    return list(
        zip(grid.requests, (faster_half(list(column)) for column in zip(*rounds, strict=True)), strict=True)
    )


def _seconds(value: float, shape: Shape) -> float:
    seconds = float(value)
    if not math.isfinite(seconds) or seconds <= 0:
        raise CostTableError(
            f"the step of {spelt(shape)} returned no time",
            arrived=value,
            allowed="finite seconds > 0",
            remedy="time the whole step with a monotonic clock after the device has finished",
        )
    return seconds


def _counts(value: object, lowest: int) -> bool:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return whole and lowest <= value <= _LARGEST  # type: ignore[operator]


def _rises(values: object, lowest: int) -> bool:
    if not isinstance(values, tuple | list) or not all(_counts(value, lowest) for value in values):
        return False
    return list(values) == sorted(set(values))
