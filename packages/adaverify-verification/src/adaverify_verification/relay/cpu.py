"""The relay of a CPU run: a publication has arrived when it returns, since a copy is all it takes."""

from __future__ import annotations

import numpy as np
import torch

from adaverify_contracts import LayoutError, Limits
from adaverify_verification.relay.base import DEFAULT_DEPTH, RingRelay, require_depth
from adaverify_verification.relay.send.reference import send_reference


class HostQueue:
    """A ``CopyQueue`` of host memory: nothing is ever under way.

    Args:
        limits: sizes of the entries.
        depth: entries; there is one more, the bin.
    """

    def __init__(self, limits: Limits, depth: int) -> None:
        self._ring = torch.zeros((depth + 1, limits.max_requests, limits.draft_tokens))
        self._host: np.ndarray = self._ring.numpy()

    def copy(self, index: int, confidences: torch.Tensor) -> None:
        """Copy into entry ``index``."""
        self._host[index, : confidences.shape[0]] = confidences.detach().numpy()

    def send(self, confidences: torch.Tensor, entry: torch.Tensor) -> None:
        """Store confidences in the entry that ``entry`` names.

        Raises:
            LayoutError: they lie on a device.
        """
        if confidences.device.type != "cpu":
            raise not_here(confidences)
        send_reference(confidences.detach(), entry, self._ring)

    def record(self, index: int) -> None:
        """Mark nothing: what was copied is there."""

    def fired(self, index: int) -> bool:
        """Return True."""
        return True

    def blank(self, index: int, rows: int) -> bool:
        """Return False: what was launched is there."""
        return False

    def written(self, index: int, rows: int) -> bool:
        """Return False: nobody asks."""
        return False

    def host(self, index: int) -> np.ndarray:
        """Return entry ``index``, float32 [max_requests, K]."""
        return self._host[index]


class CpuRelay(RingRelay):
    """Keep the last publications in host memory.

    Args:
        limits: sizes of the entries.
        depth: publications kept, at least 2.
    """

    def __init__(self, limits: Limits, depth: int = DEFAULT_DEPTH) -> None:
        require_depth(depth)
        super().__init__(limits, HostQueue(limits, depth), depth)

    def _check(self, slots: np.ndarray, generations: np.ndarray, confidences: torch.Tensor) -> None:
        super()._check(slots, generations, confidences)
        if confidences.device.type != "cpu":
            raise not_here(confidences)


def not_here(confidences: torch.Tensor) -> LayoutError:
    """Return the refusal of a tensor whose values would have to be waited for."""
    return LayoutError(
        "the host relay was given a device tensor",
        arrived=str(confidences.device),
        allowed="cpu",
        remedy="make the relay with make_relay(limits, device); reading this one would wait",
    )
