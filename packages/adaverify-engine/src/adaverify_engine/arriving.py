"""A verdict on its way to the host."""

from __future__ import annotations

import torch

from adaverify_contracts import EngineError
from adaverify_engine.acceptance import Verdict
from adaverify_engine.emission import Decided


class Arriving:
    """Copies a verdict to the host behind the operations that made it; only its reader waits.

    What is enqueued afterwards is not waited for.

    Args:
        verdict: on the run device.
    """

    def __init__(self, verdict: Verdict) -> None:
        parts = [verdict.accepted, verdict.tokens, verdict.gaps, verdict.rows, verdict.finite]
        self._event: torch.cuda.Event | None = None
        if verdict.finite.is_cuda:
            parts = [_sent(part) for part in parts]
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
        *self._parts, self._finite = parts

    @property
    def arrived(self) -> bool:
        """Whether a reader would come too late to see it arrive; never on a CPU, which has it at once."""
        return self._event is not None and bool(self._event.query())  # type: ignore[no-untyped-call]

    def decided(self) -> Decided:
        """Wait for the verdict and return it.

        Raises:
            EngineError: a logit that decides is not finite (the model or its cache is broken).
        """
        if self._event is not None:
            self._event.synchronize()
        if not bool(self._finite.all()):
            raise EngineError(
                "the model returned logits that are not finite",
                arrived=f"for {int((~self._finite).sum())} of {len(self._finite)} requests",
                allowed="finite logits",
                remedy="check the weights and the dtype; run in float32 to find the layer",
            )
        accepted, tokens, gaps, rows = (part.numpy() for part in self._parts)
        return Decided(accepted, tokens, gaps, rows)


def _sent(part: torch.Tensor) -> torch.Tensor:
    host = torch.empty(part.shape, dtype=part.dtype, pin_memory=True)
    return host.copy_(part, non_blocking=True)
