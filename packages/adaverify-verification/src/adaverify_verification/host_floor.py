"""What the host needs for a step, whatever the device does: no budget makes a step shorter than that."""

from __future__ import annotations

import numpy as np

# Weight of the newest step.
MEMORY = 0.1
# One step counts at most this many times what is expected of it, so that a pause is not taken for work.
MOST = 2.0
# A step whose host was busy for this share of it kept the device waiting.
BOUND = 0.95


class HostFloor:
    """Mean seconds of host work a request, by sizes of batches up to a factor of two.

    Sizes that were never served have none: nothing is known of them, and 0 forbids nothing.
    """

    def __init__(self) -> None:
        self._means: dict[int, float] = {}

    def learn(self, requests: int, busy: float) -> None:
        """Count one step of ``requests`` for which the host worked ``busy`` seconds."""
        if requests < 1 or busy <= 0:
            return
        size, share = requests.bit_length(), busy / requests
        mean = self._means.setdefault(size, share)
        self._means[size] = mean + MEMORY * (min(share, MOST * mean) - mean)

    def seconds(self, requests: int) -> float:
        """Return the least seconds of a step of ``requests``; 0.0 where none were served."""
        return self._means.get(requests.bit_length(), 0.0) * requests

    def under(self, prices: np.ndarray, requests: int) -> np.ndarray:
        """Return ``prices`` [any shape] of steps of ``requests``, none below the floor."""
        if not self._means:
            return prices
        floor = self.seconds(requests)
        return np.maximum(prices, floor) if floor else prices

    def binds(self, prices: np.ndarray, requests: int) -> bool:
        """Return whether all of ``prices`` are the floor itself."""
        floor = self.seconds(requests)
        return bool(floor) and bool((prices <= floor).all())


def host_bound(busy: float, seconds: float) -> bool:
    """Return whether a step of ``seconds`` was as long as its host's work, and not as the device's."""
    return busy >= BOUND * seconds
