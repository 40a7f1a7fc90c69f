"""Publish and assign for steps that run whole from a graph: the device's share apart from the host's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from adaverify_verification.assignment import Assigner, Assignment
from adaverify_verification.law import Pins
from adaverify_verification.live import LiveConfidences


class CapturedSteps:
    """The manager's methods for a decode step that is one replay.

    Inside the graph, on static tensors: ``capture_live`` on the step's scores, then ``assign_captured``. On
    the host: ``begin_publish``, the returned index into the device scalar ``entry``, ``plan``, the budget
    into its device scalar, the replay, ``end_publish``. ``observe`` as for any step.
    """

    _live: LiveConfidences
    _assigner: Assigner
    _require_open: Callable[[], None]
    _pins: Pins | None

    def capture_live(self, scores: torch.Tensor, slots: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
        """Turn scores into live confidences and store them in the relay's ring. Device work only; capturable.

        Args:
            scores: float32 [R, K] on the run device, 0 where undrafted; R may count padding requests.
            slots: int64 [R] on the run device, -1 for padding requests.
            entry: int32 [1] on the run device; what ``begin_publish`` returned for the step that runs.

        Returns:
            The live confidences float32 [R, K], in the static buffer that ``assign_captured`` reads.

        Raises:
            PluginFault: the signal raised or returned something else; warm up once before a capture to see
                it. Nothing is sent then.
            LayoutError: the tensors do not fit the limits.
            CapabilityError: the ring cannot be written by a kernel here.
        """
        self._require_open()
        return self._live.capture_live(scores, slots, entry)

    def begin_publish(self, step: int, slots: np.ndarray, generations: np.ndarray) -> int:
        """Reserve a ring entry for the confidences that the next replay sends. Host work only.

        Recycled slots are forgotten here, enqueued before the replay. A signal that fails at that publishes
        nothing, as in ``publish``.

        Args:
            step: the step that verifies these drafts.
            slots: int64 [R], slots of the real requests, in row order.
            generations: int64 [R], their generations.

        Returns:
            The index for the device scalar ``entry``; that of the relay's bin when nothing is published.

        Raises:
            LayoutError: the lengths do not fit the limits, or the step is no step number.
            ClosedError: the manager is closed.
        """
        self._require_open()
        return self._live.begin_publish(step, slots, generations)

    def end_publish(self) -> None:
        """Say that the replay is enqueued on the current stream; skip it when the replay failed.

        Raises:
            PlanError: nothing was begun.
        """
        self._live.end_publish()

    def assign_captured(
        self,
        requests: int,
        padded_tokens: int,
        scheduled: torch.Tensor,
        kv_lens: torch.Tensor,
        budget: torch.Tensor,
    ) -> Assignment:
        """Spend a device budget on the live confidences as they lie. Device work only; capturable.

        Row r of the live confidences must be request r: ``capture_live`` ran on the same rows. No plan is
        looked up and nothing is noted.

        Args:
            requests: R, request slots to describe, padding included.
            padded_tokens: query tokens to describe, padding included.
            scheduled: int32 [R] on the run device, -1 for padding requests.
            kv_lens: int32 [R] on the run device.
            budget: int32 [1] on the run device.

        Raises:
            LayoutError: the tensors do not fit the limits.
        """
        self._require_open()
        confidences = self._live.rows(requests)
        if self._pins is not None:
            # Which rows must be verified whole was enqueued by ``plan``.
            confidences = self._pins.apply(confidences)
        return self._assigner.assign(confidences, scheduled, kv_lens, budget, padded_tokens)
