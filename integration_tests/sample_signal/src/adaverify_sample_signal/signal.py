"""The signal: raw scores of a drafter in, confidences out."""

from __future__ import annotations

import torch
from adaverify_contracts import Limits, StepOutcome


class SampleSignal:
    """Confidence sigmoid(score - k x slope): later positions are trusted less."""

    SLOPE = 0.2

    def __init__(self, limits: Limits, device: torch.device) -> None:
        # Everything is allocated here, once.
        self._out = torch.zeros(limits.max_requests, limits.draft_tokens, device=device)
        self._shift = self.SLOPE * torch.arange(limits.draft_tokens, device=device)

    def confidences(self, scores: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Return float32 [R, K] in 0 .. 1; a NaN score gives 0."""
        out = self._out[: scores.shape[0]]
        torch.sub(scores, self._shift, out=out)
        return out.sigmoid_().nan_to_num_(nan=0.0)

    def learn(self, outcome: StepOutcome) -> None:
        """Ignore the outcome; a signal that learns counts positions up to ``accepted`` here."""

    def forget(self, slot: int) -> None:
        """Forget nothing: no slot has state."""

    def ready(self) -> tuple[bool, str]:
        """Return True; a signal that has to learn returns False and why until it may drive trimming."""
        return True, "the slope is fixed"
