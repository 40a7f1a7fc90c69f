"""Every draft token is taken to survive: the baseline, and the signal of a drafter without scores."""

from __future__ import annotations

import torch

from adaverify_contracts import Limits, StepOutcome
from adaverify_verification.signals.buffers import SignalBuffers


class OptimisticSignal:
    """Confidence 1 everywhere, whatever the scores say."""

    def __init__(self, limits: Limits, device: torch.device) -> None:
        self._buffers = SignalBuffers(limits, device)

    def confidences(self, scores: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Return ones, float32 [R, K], in a static buffer. Capturable."""
        return self._buffers.output(scores, slots).fill_(1.0)

    def learn(self, outcome: StepOutcome) -> None:
        """Ignore the outcome."""

    def forget(self, slot: int) -> None:
        """Forget nothing: no slot has state."""

    def ready(self) -> tuple[bool, str]:
        """Return True: there is nothing to learn."""
        return True, "every draft token is taken to survive"
