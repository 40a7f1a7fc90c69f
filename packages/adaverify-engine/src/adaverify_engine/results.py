"""What a whole step decided, on its way to the host: one device tensor, one copy, a ring of host buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from adaverify_contracts import Limits

RING = 4
"""Host buffers: two steps may be under way while the host reads a third."""

_FIELDS = ("accepted", "admitted", "tokens", "gaps", "scores", "finite")


@dataclass(frozen=True, slots=True)
class StepResults:
    """Views of one flat int32 tensor, by row; S = max_requests rows, of which a step fills its own.

    Attributes:
        accepted: int32 [S]; admitted: int32 [S].
        tokens: int32 [S, K + 1], -1 past what was emitted; gaps: float32 [S, K + 1].
        scores: float32 [S, K], the drafter's raw scores.
        finite: int32 [1], 0 when a deciding logit was not finite.
    """

    accepted: torch.Tensor
    admitted: torch.Tensor
    tokens: torch.Tensor
    gaps: torch.Tensor
    scores: torch.Tensor
    finite: torch.Tensor

    @classmethod
    def over(cls, flat: torch.Tensor, limits: Limits) -> StepResults:
        """Return views of ``flat`` int32 [size(limits)], on any device."""
        rows, drafts = limits.max_requests, limits.draft_tokens
        shapes = {
            "accepted": (rows,),
            "admitted": (rows,),
            "tokens": (rows, drafts + 1),
            "gaps": (rows, drafts + 1),
            "scores": (rows, drafts),
            "finite": (1,),
        }
        views, at = {}, 0
        for name, shape in shapes.items():
            end = at + int(np.prod(shape))
            part = flat[at:end].view(shape)
            views[name] = part.view(torch.float32) if name in ("gaps", "scores") else part
            at = end
        return cls(**views)

    @staticmethod
    def size(limits: Limits) -> int:
        """Return the int32 values of all views together."""
        drafts = limits.draft_tokens
        return limits.max_requests * (2 + 2 * (drafts + 1) + drafts) + 1


@dataclass(frozen=True, slots=True)
class HostResults:
    """One step's results for its R rows, owned by the caller; fields as in ``StepResults``."""

    accepted: np.ndarray
    admitted: np.ndarray
    tokens: np.ndarray
    gaps: np.ndarray
    scores: np.ndarray
    finite: bool


class ResultRing:
    """Copies results to the host behind the step that made them; the device never waits for a reader.

    A reader waits for its own step at most, while a later step keeps the device busy.

    Args:
        limits: sizes.
        device: run device.
    """

    def __init__(self, limits: Limits, device: torch.device) -> None:
        size = StepResults.size(limits)
        self._flat = torch.zeros(size, dtype=torch.int32, device=device)
        self.device_results = StepResults.over(self._flat, limits)
        accelerated = device.type == "cuda"
        self._hosts = [torch.zeros(size, dtype=torch.int32, pin_memory=accelerated) for _ in range(RING)]
        # The same memory in NumPy: a view of a tensor and its array take microseconds a field.
        views = [StepResults.over(host, limits) for host in self._hosts]
        self._views = [{name: getattr(view, name).numpy() for name in _FIELDS} for view in views]
        self._events: list[Any] = [
            torch.cuda.Event() if accelerated else None  # type: ignore[no-untyped-call]
            for _ in range(RING)
        ]
        self._next = 0

    def send(self) -> int:
        """Enqueue the copy of the last launched step's results and return its ring index."""
        index, self._next = self._next, (self._next + 1) % RING
        self._hosts[index].copy_(self._flat, non_blocking=True)
        if self._events[index] is not None:
            self._events[index].record()
        return index

    def arrived(self, index: int) -> bool:
        """Return whether ``take`` of ring entry ``index`` would not wait."""
        event = self._events[index]
        return event is None or bool(event.query())

    def take(self, index: int, rows: int) -> HostResults:
        """Wait until ring entry ``index`` has arrived and return its first ``rows`` rows."""
        if self._events[index] is not None:
            self._events[index].synchronize()
        view = self._views[index]
        return HostResults(
            accepted=view["accepted"][:rows].astype(np.int64),
            admitted=view["admitted"][:rows].astype(np.int64),
            tokens=view["tokens"][:rows].copy(),
            gaps=view["gaps"][:rows].copy(),
            scores=view["scores"][:rows].copy(),
            finite=bool(view["finite"][0]),
        )
