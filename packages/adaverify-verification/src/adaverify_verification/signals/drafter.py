"""The drafter's own scores, read as logits: for heads that were calibrated when they were trained."""

from __future__ import annotations

import torch

from adaverify_contracts import Limits, StepOutcome
from adaverify_verification.signals.buffers import SignalBuffers


class DrafterSignal:
    """Confidence sigmoid(z_k): scores as they are. With temperatures: ``temperature-scaled``.

    Args:
        limits: sizes.
        device: run device.
    """

    def __init__(self, limits: Limits, device: torch.device) -> None:
        self._buffers = SignalBuffers(limits, device)

    def confidences(self, scores: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Return sigmoid(scores), float32 [R, K], in a static buffer; NaN gives 0. Capturable."""
        out = self._buffers.output(scores, slots)
        torch.sigmoid(scores, out=out)
        return out.nan_to_num_(nan=0.0)

    def learn(self, outcome: StepOutcome) -> None:
        """Ignore the outcome."""

    def forget(self, slot: int) -> None:
        """Forget nothing: no slot has state."""

    def ready(self) -> tuple[bool, str]:
        """Return True: the scores are used from the first step."""
        return True, "the drafter's scores are used as they are"
