"""Whether repeated times of one shape agree, and what is measured again when they do not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from statistics import median
from typing import TypeVar

import numpy as np

from adaverify_verification.contention import WAIT_BOUND, waited_share
from adaverify_verification.monotone import isotonic

Shape = tuple[int, int, int]
# Share of each round that was spent waiting for a processor, parallel to the seconds.
Waited = Mapping[tuple[int, int, int], Sequence[float]]
Key = TypeVar("Key", bound=Hashable)
# The time that counts may lie this far above the fastest round. Quiet rounds of one shape agree to about 2 %;
# at 10 % no margin of the guard covers the error.
SPREAD_BOUND = 0.10
# A point that the never-falling fit moves by more is measured again: all its rounds may have met one burst.
CORRECTION_BOUND = 0.05
# Further passes over the shapes in doubt, each of as many rounds as the first. Three of them turn four rounds
# of burst in a row into a quarter of the rounds; what is unquiet after that is unquiet for minutes.
RETRIES = 3
# One round of eight may be a lucky one (a clock's boost) without putting the others in doubt.
LUCKY = 8
# A round this much slower than the time that counts was disturbed, and is named.
DISTURBED = 1.5


def faster_half(seconds: Sequence[float]) -> float:
    """Return the median of the faster half of the rounds, the middle one included: the time that counts."""
    return median(sorted(seconds)[: (len(seconds) + 1) // 2])


def spread(seconds: Sequence[float]) -> float:
    """Return how far the time that counts lies above the fastest round, as a share of the latter.

    Whatever disturbs a step only ever adds time, so the fastest round is the least disturbed one, and the
    time that counts is believed when it is near. Of eight rounds or more the fastest eighth is left out.
    """
    return faster_half(seconds) / sorted(seconds)[len(seconds) // LUCKY] - 1.0


def run_rounds(
    keys: Sequence[Key], measure: Callable[[Key], float], rounds: int, samples: dict[Key, list[float]]
) -> None:
    """Append ``rounds`` times of each key to ``samples``, forwards and backwards in turn.

    A burst then falls on many keys and few rounds of each, and a clock that drifts moves all keys alike.
    """
    for turn in range(rounds):
        for key in keys if turn % 2 == 0 else list(reversed(keys)):
            samples.setdefault(key, []).append(measure(key))


def corrections(points: Mapping[Shape, float]) -> dict[Shape, float]:
    """Return how far the never-falling fit moves each (tokens, requests, context) point, as a share of it."""
    curves: dict[tuple[int, int], list[Shape]] = defaultdict(list)
    for shape in sorted(points):
        curves[shape[1], shape[2]].append(shape)
    moved: dict[Shape, float] = {}
    for curve in curves.values():
        times = np.array([points[shape] for shape in curve])
        moved.update(zip(curve, (np.abs(isotonic(times) - times) / times).tolist(), strict=True))
    return moved


def settle(
    samples: dict[Shape, list[float]],
    again: Callable[[Sequence[Shape]], None],
    executed: Callable[[Shape], Shape],
    waited: Waited | None = None,
    *,
    retries: int = RETRIES,
) -> tuple[Shape, ...]:
    """Measure shapes in doubt again, at most ``retries`` times; return those that never came to rest.

    In doubt are shapes whose rounds spread by more than ``SPREAD_BOUND`` or waited for a processor more than
    ``WAIT_BOUND`` of the time that counts, and shapes that the never-falling fit moves by more than
    ``CORRECTION_BOUND``. A time of the latter that comes out again is the machine's own, not a disturbance:
    kernels do run some sizes faster than smaller ones.

    Args:
        samples: seconds of every shape so far; ``again`` appends to it.
        again: measures the given shapes once more.
        executed: what a shape executes, which is where the fit has it.
        waited: share of each round spent waiting; ``again`` appends to it. None where nothing is known.
        retries: further passes at most.
    """
    waited = {} if waited is None else waited
    believed: dict[Shape, float] = {}
    for _ in range(retries):
        doubtful = unquiet(samples, waited)
        used = {shape: faster_half(times) for shape, times in samples.items()}
        moved = corrections({executed(shape): seconds for shape, seconds in used.items()})
        for shape, seconds in used.items():
            known = believed.get(shape)
            repeated = known is not None and abs(seconds / known - 1.0) <= CORRECTION_BOUND
            if moved[executed(shape)] > CORRECTION_BOUND and not repeated:
                doubtful.append(shape)
                believed[shape] = seconds
        if not doubtful:
            return ()
        again(list(dict.fromkeys(doubtful)))
    return tuple(unquiet(samples, waited))


def unquiet(samples: Mapping[Shape, Sequence[float]], waited: Waited) -> list[Shape]:
    """Return the shapes whose rounds do not agree, or waited for a processor."""
    return [
        shape
        for shape, times in samples.items()
        if spread(times) > SPREAD_BOUND or waited_share(times, waited.get(shape, ())) > WAIT_BOUND
    ]


def slow_rounds(samples: Mapping[Shape, Sequence[float]]) -> list[str]:
    """Return a sentence about each shape with rounds far slower than the time that counts."""
    found = []
    for shape, times in samples.items():
        used = faster_half(times)
        slow = [value for value in times if value > DISTURBED * used]
        if slow:
            rounds = f"{len(slow)} of {len(times)} rounds disturbed"
            found.append(f"{spelt(shape)}: {rounds}, up to {max(slow):.6g} s, used {used:.6g} s")
    return found


def unquiet_words(
    shapes: Iterable[Shape], samples: Mapping[Shape, Sequence[float]], waited: Waited
) -> list[str]:
    """Return a sentence about each shape that never came to rest."""
    return [_unquiet_words(shape, samples[shape], waited.get(shape, ())) for shape in shapes]


def _unquiet_words(shape: Shape, seconds: Sequence[float], shares: Sequence[float]) -> str:
    share = waited_share(seconds, shares)
    if share > WAIT_BOUND:
        return (
            f"{spelt(shape)}: {share:.0%} of the time that counts was spent waiting for a processor that "
            f"something else held, {WAIT_BOUND:.0%} allowed"
        )
    return (
        f"{spelt(shape)}: {len(seconds)} rounds do not agree, the time that counts is "
        f"{spread(seconds):.0%} above the fastest, {SPREAD_BOUND:.0%} allowed"
    )


def spelt(shape: Shape) -> str:
    """Return a shape in words."""
    tokens, requests, context = shape
    return f"{tokens} tokens, {requests} requests, context {context}"
