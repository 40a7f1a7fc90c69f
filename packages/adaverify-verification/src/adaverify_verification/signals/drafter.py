"""The drafter's own scores, read as logits: for heads that were calibrated when they were trained."""

from __future__ import annotations

import torch

from adaverify_contracts import CalibrationError, Limits, StepOutcome
from adaverify_verification.signals.buffers import SignalBuffers


class DrafterSignal:
    """Confidence sigmoid(z_k / T_k); T = 1 unless temperatures are given (maths section 6, STS).

    Args:
        limits: sizes.
        device: run device.
        temperatures: one T_k > 0 a position, applied before the product; None takes the scores as they are.

    Raises:
        CalibrationError: not K temperatures, or one that is not above 0; both numbers are named.
    """

    def __init__(
        self, limits: Limits, device: torch.device, *, temperatures: tuple[float, ...] | None = None
    ) -> None:
        chosen = (1.0,) * limits.draft_tokens if temperatures is None else temperatures
        if len(chosen) != limits.draft_tokens or not all(0.0 < value < float("inf") for value in chosen):
            raise CalibrationError(
                f"{len(chosen)} temperatures were given for K = {limits.draft_tokens} draft tokens",
                arrived=chosen,
                allowed=f"{limits.draft_tokens} finite numbers above 0",
                remedy="fit temperatures for the K in force, or leave them out",
            )
        self._buffers = SignalBuffers(limits, device)
        self._inverse = torch.tensor([1.0 / value for value in chosen], dtype=torch.float32, device=device)
        self._scaled = temperatures is not None

    def confidences(self, scores: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Return sigmoid(scores / T), float32 [R, K], in a static buffer; NaN gives 0. Capturable."""
        out = self._buffers.output(scores, slots)
        torch.mul(scores, self._inverse, out=out)
        return out.sigmoid_().nan_to_num_(nan=0.0)

    def learn(self, outcome: StepOutcome) -> None:
        """Ignore the outcome."""

    def forget(self, slot: int) -> None:
        """Forget nothing: no slot has state."""

    def ready(self) -> tuple[bool, str]:
        """Return True: the scores are used from the first step."""
        how = "with the temperatures given" if self._scaled else "as they are"
        return True, f"the drafter's scores are used {how}"
