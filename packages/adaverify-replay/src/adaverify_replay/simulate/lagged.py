"""The relay of a simulated device: what a step publishes can be read some steps later."""

from __future__ import annotations

import numpy as np
import torch

from adaverify_contracts import Limits, Snapshot
from adaverify_verification import CpuRelay


class LaggedRelay(CpuRelay):
    """A host relay that keeps what the last steps published to itself, as a device under way does.

    Args:
        limits: sizes of the entries.
        lag: steps from a publication to the first plan that may read it; 0 hides nothing.
    """

    def __init__(self, limits: Limits, lag: int) -> None:
        # All publications that are too new, the newest that may be read, and the entry being written.
        super().__init__(limits, depth=lag + 2)
        self._lag, self._published_step = lag, 0

    def publish(
        self, step: int, slots: np.ndarray, generations: np.ndarray, confidences: torch.Tensor
    ) -> None:
        """Keep one step's confidences; see ``Relay.publish``."""
        self._published_step = step
        super().publish(step, slots, generations, confidences)

    def latest(self, at_most: int | None = None) -> Snapshot | None:
        """Return the newest snapshot that has arrived; see ``Relay.latest``."""
        arrived = self._published_step - self._lag
        return super().latest(arrived if at_most is None else min(at_most, arrived))
