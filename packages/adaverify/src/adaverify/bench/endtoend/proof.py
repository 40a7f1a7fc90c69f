"""What steps launch and where the device is idle: a profile of 100 steps without a waiting call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]

from adaverify.bench.endtoend.arms import Adaptive, OurSteps
from adaverify.bench.endtoend.deck import Deck
from adaverify.bench.launches import COUNTED, require_launches, synchronising_is_an_error
from adaverify_contracts import WrongValueError
from adaverify_engine.flight import AHEAD

STEPS = 100
# A step has a thousand kernels and the profiler lists each: two sizes show it, others would only cost time.
PROVEN = (1, 64)


def prove_steps(deck: Deck) -> dict[str, Any] | None:
    """Require one graph launch a step and no waiting call over 100 adaptive steps.

    Returns:
        Calls a step by name, none where the profiler records no calls; the longest stretch without a kernel
        and the sum of all, in microseconds. None on a CPU, and at sizes other than ``PROVEN``.

    Raises:
        WrongValueError: a call synchronised, or a step is not one graph launch.
    """
    if deck.ground.kind != "cuda" or deck.requests not in PROVEN:
        return None
    steps = OurSteps(deck, Adaptive(deck))
    steps.open(deck.ground.text.starts(deck.requests, 0))
    for _ in range(AHEAD):
        steps.launch()
    steps.land()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    profiler = torch.profiler.profile(activities=activities, acc_events=True)
    with profiler as profile, synchronising_is_an_error():
        try:
            for _ in range(STEPS):
                steps.launch()
                steps.land()
        except RuntimeError as error:
            raise WrongValueError(
                "a recorded step made a synchronising call",
                arrived=str(error),
                allowed="none but the wait for the event behind its results",
                remedy="do not trust captured steps here",
            ) from error
    while len(steps):
        steps.land()
    calls = {one.key: one.count for one in profile.key_averages() if one.key in COUNTED}
    if calls:
        require_launches(calls, STEPS, STEPS)
    spans = sorted(
        (float(event.time_range.start), float(event.time_range.end))
        for event in profile.events() or ()
        if event.device_type == DeviceType.CUDA
    )
    return {
        "steps": STEPS,
        "calls_a_step": {name: count / STEPS for name, count in calls.items()},
        **gaps(spans, STEPS),
    }


def gaps(spans: Iterable[tuple[float, float]], steps: int) -> dict[str, float]:
    """Return the longest stretch that no span covers, their sum a step, and the whole a step; microseconds.

    Args:
        spans: (begin, end), by rising begin.
        steps: how many steps they are of.
    """
    longest = total = 0.0
    first = busy = None
    for begin, end in spans:
        if first is None or busy is None:
            first, busy = begin, end
            continue
        gap = max(0.0, begin - busy)
        longest, total, busy = max(longest, gap), total + gap, max(busy, end)
    if first is None or busy is None:
        return {}
    return {
        "longest_gap_us": longest,
        "gaps_us_a_step": total / steps,
        "device_us_a_step": (busy - first) / steps,
    }
