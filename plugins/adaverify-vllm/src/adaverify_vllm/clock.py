"""How long a step takes on the device, read later and never waited for."""

from __future__ import annotations

import time
from typing import Any

import torch

# A step's time is read when its outcome has arrived, a few steps later.
DEPTH = 16


class StepClock:
    """Times from the assignment of a step to the end of its drafting.

    On an accelerator two events a step, so that neither idle time between steps nor the host's lead counts.

    Args:
        device: run device.
    """

    def __init__(self, device: torch.device) -> None:
        self._events = device.type == "cuda"
        self._marks = [(self._mark(), self._mark()) for _ in range(DEPTH)]
        self._started = [-1] * DEPTH
        self._stopped = [-1] * DEPTH
        self._times = [[0.0, 0.0] for _ in range(DEPTH)]

    def _mark(self) -> Any:
        return torch.cuda.Event(enable_timing=True) if self._events else None  # type: ignore[no-untyped-call]

    def start(self, step: int) -> None:
        """Mark the beginning of a step on the current stream."""
        self._note(step, 0)
        self._started[step % DEPTH] = step

    def stop(self, step: int) -> None:
        """Mark its end."""
        self._note(step, 1)
        self._stopped[step % DEPTH] = step

    def _note(self, step: int, side: int) -> None:
        place = step % DEPTH
        if self._events:
            self._marks[place][side].record()
        else:
            self._times[place][side] = time.perf_counter()

    def seconds(self, step: int) -> float | None:
        """Return the seconds of a step whose end has passed on the device; None for one not timed."""
        place = step % DEPTH
        if self._started[place] != step or self._stopped[place] != step:
            return None
        if not self._events:
            begun, ended = self._times[place]
            return ended - begun
        begun, ended = self._marks[place]
        # Asked of an event that has not fired this would raise; the caller has seen a later one fire.
        return float(begun.elapsed_time(ended)) / 1000.0 if ended.query() else None
