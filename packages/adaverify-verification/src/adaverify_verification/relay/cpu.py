"""The relay of a CPU run: a publication has arrived when it returns, since a copy is all it takes."""

from __future__ import annotations

import numpy as np
import torch

from adaverify_contracts import LayoutError, Limits
from adaverify_verification.relay.base import DEFAULT_DEPTH, RingRelay
from adaverify_verification.relay.send.reference import send_reference


class CpuRelay(RingRelay):
    """Keep the last publications in host memory.

    Args:
        limits: sizes of the entries.
        depth: publications kept, at least 2.
    """

    def __init__(self, limits: Limits, depth: int = DEFAULT_DEPTH) -> None:
        super().__init__(limits, depth)
        # One entry more than the ring has: the bin.
        self._ring = torch.zeros((depth + 1, limits.max_requests, limits.draft_tokens))
        self._host: np.ndarray = self._ring.numpy()

    def _copy(self, index: int, confidences: torch.Tensor) -> None:
        self._host[index, : confidences.shape[0]] = confidences.detach().numpy()

    def _send(self, confidences: torch.Tensor, entry: torch.Tensor) -> None:
        if confidences.device.type != "cpu":
            raise self._not_here(confidences)
        send_reference(confidences.detach(), entry, self._ring)

    def _record(self, index: int) -> None:
        """Mark nothing: what was copied is there."""

    def _has_arrived(self, index: int) -> bool:
        return True

    def _read(self, index: int, requests: int) -> np.ndarray:
        return self._host[index, :requests].copy()

    def _check(self, slots: np.ndarray, generations: np.ndarray, confidences: torch.Tensor) -> None:
        super()._check(slots, generations, confidences)
        if confidences.device.type != "cpu":
            raise self._not_here(confidences)

    @staticmethod
    def _not_here(confidences: torch.Tensor) -> LayoutError:
        return LayoutError(
            "the host relay was given a device tensor",
            arrived=str(confidences.device),
            allowed="cpu",
            remedy="make the relay with make_relay(limits, device); reading this one would wait",
        )
