"""How much of a measurement was spent waiting for a processor that something else held.

A neighbour that slows every round alike leaves no scatter, and a level says nothing about itself: only the
system knows that threads were ready to run and did not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

# A step whose threads waited this share of it took that much longer than it takes: as much as rounds may
# disagree. On a quiet machine the share is under 1 %.
WAIT_BOUND = 0.10
_TASKS = Path("/proc/self/task")


def thread_waits() -> dict[int, float]:
    """Return the seconds that each thread of this process has been ready and not running, by thread id.

    Linux counts them in ``schedstat``; elsewhere nothing is known and the answer is empty. Processors that a
    hypervisor takes away are not in it.
    """
    waits = {}
    try:
        for task in _TASKS.iterdir():
            waits[int(task.name)] = int((task / "schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        # A thread that has just ended is no reason to give up the others.
        return waits
    return waits


class ContentionWatch:
    """Times runs and keeps the share of each that its most delayed thread waited for a processor.

    Args:
        waits: cumulative seconds by thread; ``thread_waits`` when None.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        waits: Callable[[], Mapping[int, float]] | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._waits = thread_waits if waits is None else waits
        self._clock = clock

    def around(self, run: Callable[[], float]) -> tuple[float, float]:
        """Return what ``run`` returns, and the share of its duration that a thread waited, 0 .. 1.

        A step ends with its latest thread, so the longest wait counts and not the sum.
        """
        before, begin = self._waits(), self._clock()
        value = run()
        end, after = self._clock(), self._waits()
        longest = max((waited - before.get(thread, waited) for thread, waited in after.items()), default=0.0)
        return value, min(1.0, longest / (end - begin)) if end > begin else 0.0


def waited_share(seconds: Sequence[float], shares: Sequence[float]) -> float:
    """Return the median share over the faster half of the rounds, whose time is what counts.

    Args:
        seconds: of each round.
        shares: waited in each of these rounds; nothing is known where it is empty.
    """
    if len(shares) != len(seconds):
        return 0.0
    faster = sorted(zip(seconds, shares, strict=True))[: (len(seconds) + 1) // 2]
    return median(share for _, share in faster)
