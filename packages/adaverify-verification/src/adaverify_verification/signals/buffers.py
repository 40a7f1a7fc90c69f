"""Static tensors that every built-in signal writes its confidences into."""

from __future__ import annotations

import torch

from adaverify_contracts import LayoutError, Limits


class SignalBuffers:
    """Output and index buffers for at most ``limits.max_requests`` rows; allocated once.

    Args:
        limits: sizes; slots are numbered 0 .. max_requests - 1.
        device: run device.
    """

    def __init__(self, limits: Limits, device: torch.device) -> None:
        self.rows, self.width = limits.max_requests, limits.draft_tokens
        self._out = torch.zeros(self.rows, self.width, dtype=torch.float32, device=device)
        self._index = torch.zeros(self.rows, dtype=torch.int64, device=device)

    def output(self, scores: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Return the output view float32 [R, K] for ``scores``, valid until the next call.

        Raises:
            LayoutError: scores are not float32 [R, K] with R <= max_requests, or slots not int64 [R].
        """
        requests = scores.shape[0]
        if (
            scores.shape != (requests, self.width)
            or scores.dtype != torch.float32
            or slots.shape != (requests,)
            or slots.dtype != torch.int64
            or requests > self.rows
        ):
            raise LayoutError(
                "a signal was given scores or slots of the wrong shape or dtype",
                arrived=(str(scores.dtype), tuple(scores.shape), str(slots.dtype), tuple(slots.shape)),
                allowed=f"scores float32 [R, {self.width}] and slots int64 [R] with R <= {self.rows}",
                remedy="cut or pad the drafter's columns to K once, when it is made",
            )
        return self._out[:requests]

    def rows_of(self, slots: torch.Tensor) -> torch.Tensor:
        """Return table rows int64 [R]; -1 (padding) and slots past the end get the last, spare row."""
        index = torch.clamp(slots, -1, self.rows, out=self._index[: slots.shape[0]])
        return index.remainder_(self.rows + 1)
