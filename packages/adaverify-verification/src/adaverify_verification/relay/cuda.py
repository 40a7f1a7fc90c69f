"""The relay of an accelerator run: staged on the device, copied by a side stream, read once it arrived."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from adaverify_contracts import CapabilityError, Limits
from adaverify_verification.relay.base import DEFAULT_DEPTH, RingRelay


class CopyQueue(Protocol):
    """What the relay asks of a device: one pinned and one staging buffer an entry, and one event each."""

    def copy(self, index: int, confidences: torch.Tensor) -> None:
        """Enqueue device -> host for entry ``index`` and record its event; return at once."""
        ...

    def fired(self, index: int) -> bool:
        """Return whether the event of entry ``index`` has fired; never wait."""
        ...

    def host(self, index: int) -> np.ndarray:
        """Return the host buffer of entry ``index``, float32 [max_requests, K]; valid once fired."""
        ...


class StreamQueue:
    """A ``CopyQueue`` on torch streams and events.

    Order of one copy: the run stream copies into the entry's staging buffer (so the caller may rewrite its
    tensor next, in stream order) and records ``staged``; the side stream waits for that, copies into pinned
    memory and records ``arrived``. The run stream never waits for the bus.
    """

    def __init__(self, limits: Limits, device: torch.device, depth: int) -> None:
        shape = (depth, limits.max_requests, limits.draft_tokens)
        self._staging = torch.zeros(shape, dtype=torch.float32, device=device)
        self._pinned = torch.zeros(shape, dtype=torch.float32, pin_memory=True)
        self._host: np.ndarray = self._pinned.numpy()
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._staged = [torch.cuda.Event() for _ in range(depth)]  # type: ignore[no-untyped-call]
        self._arrived = [torch.cuda.Event() for _ in range(depth)]  # type: ignore[no-untyped-call]

    def copy(self, index: int, confidences: torch.Tensor) -> None:
        """Enqueue device -> host for entry ``index`` and record its event; return at once."""
        requests = confidences.shape[0]
        staging = self._staging[index, :requests]
        staging.copy_(confidences)
        staged = self._staged[index]
        staged.record(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._side):
            self._side.wait_event(staged)
            self._pinned[index, :requests].copy_(staging, non_blocking=True)
            self._arrived[index].record(self._side)

    def fired(self, index: int) -> bool:
        """Return whether the event of entry ``index`` has fired; never wait."""
        return bool(self._arrived[index].query())  # type: ignore[no-untyped-call]

    def host(self, index: int) -> np.ndarray:
        """Return the pinned buffer of entry ``index``, float32 [max_requests, K]; valid once fired."""
        buffer: np.ndarray = self._host[index]
        return buffer


class CudaRelay(RingRelay):
    """Copy confidences to pinned memory on a side stream; the host only asks events whether they fired.

    Args:
        limits: sizes of the entries.
        device: the run device, CUDA or ROCm.
        depth: ring entries, at least 2.
        queue: how bytes move; torch streams when None. A test passes its own.

    Raises:
        CapabilityError: no accelerator is available and no queue was given.
    """

    def __init__(
        self,
        limits: Limits,
        device: torch.device | str,
        depth: int = DEFAULT_DEPTH,
        *,
        queue: CopyQueue | None = None,
    ) -> None:
        super().__init__(limits, depth)
        device = torch.device(device)
        if queue is None and not (device.type == "cuda" and torch.cuda.is_available()):
            raise CapabilityError(
                "the device relay needs an accelerator with streams",
                arrived=str(device),
                allowed="a cuda device that is available",
                remedy="make the relay with make_relay(limits, device)",
            )
        self._queue: CopyQueue = queue if queue is not None else StreamQueue(limits, device, depth)

    def _enqueue(self, index: int, confidences: torch.Tensor) -> None:
        self._queue.copy(index, confidences)

    def _has_arrived(self, index: int) -> bool:
        return self._queue.fired(index)

    def _read(self, index: int, requests: int) -> np.ndarray:
        return self._queue.host(index)[:requests].copy()
