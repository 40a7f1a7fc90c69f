"""The relay of an accelerator run: one write on the run stream into pinned memory, read once it arrived."""

from __future__ import annotations

import numpy as np
import torch

from adaverify_contracts import CapabilityError, Limits
from adaverify_verification.relay.base import DEFAULT_DEPTH, CopyQueue, RingRelay, require_depth
from adaverify_verification.relay.send.launch import send

# Bits that no confidence has: a NaN that no arithmetic makes. A value of four bytes is written at once or
# not at all, so that each tells by itself whether it is there, whatever order the bus brings them in. A
# signal that passes such a NaN on is read when its event has fired.
UNWRITTEN = 0xFFFFFFFF


class StreamQueue:
    """A ``CopyQueue`` on one stream: the current one.

    A copy and an event, both behind the work that computed the confidences and before whatever rewrites
    them: no second stream, no staging buffer (decision 4). Views and stream objects are made once: an index
    expression of torch costs as much on the host as the copy.
    """

    def __init__(self, limits: Limits, device: torch.device, depth: int) -> None:
        shape = (depth + 1, limits.max_requests, limits.draft_tokens)
        self._pinned = torch.zeros(shape, dtype=torch.float32, pin_memory=True)
        whole: np.ndarray = self._pinned.numpy()
        self._entries = [self._pinned[index] for index in range(depth)]
        self._hosts = [whole[index] for index in range(depth)]
        self._bits = [host.reshape(-1).view(np.uint32) for host in self._hosts]
        self._width = limits.draft_tokens
        # By entry and number of rows: at most depth x max_requests small objects.
        self._views: list[dict[int, torch.Tensor]] = [{} for _ in range(depth)]
        self._device = torch.cuda.current_device() if device.index is None else device.index
        events = [torch.cuda.Event() for _ in range(depth)]  # type: ignore[no-untyped-call]
        # The methods under torch's Python ones: a frame less each, where nothing is warm a microsecond.
        self._records = [super(torch.cuda.Event, event).record for event in events]
        self._queries = [super(torch.cuda.Event, event).query for event in events]
        # The stream recorded on last, and its address: asking for the address alone takes a tenth of the time
        # that making a stream object takes, and the run stream hardly ever changes.
        self._stream = torch.cuda.current_stream(self._device)
        self._address = self._stream.cuda_stream
        self._current_address = torch._C._cuda_getCurrentRawStream

    def copy(self, index: int, confidences: torch.Tensor) -> None:
        """Enqueue device -> host for entry ``index`` on the current stream; return at once."""
        requests = confidences.shape[0]
        view = self._views[index].get(requests)
        if view is None:
            view = self._views[index][requests] = self._entries[index][:requests]
        view.copy_(confidences, non_blocking=True)

    def send(self, confidences: torch.Tensor, entry: torch.Tensor) -> None:
        """Store confidences in the entry that the device scalar ``entry`` names; capturable."""
        send(confidences, entry, self._pinned)

    def record(self, index: int) -> None:
        """Record the event of entry ``index`` on the current stream; return at once."""
        if self._current_address(self._device) != self._address:
            self._stream = torch.cuda.current_stream(self._device)
            self._address = self._stream.cuda_stream
        self._records[index](self._stream)

    def fired(self, index: int) -> bool:
        """Return whether the event of entry ``index`` has fired; never wait."""
        return bool(self._queries[index]())

    def blank(self, index: int, rows: int) -> bool:
        """Mark the first ``rows`` of entry ``index``, which nothing writes to, as not written."""
        self._bits[index][: rows * self._width] = UNWRITTEN
        return True

    def written(self, index: int, rows: int) -> bool:
        """Return whether no value of the first ``rows`` of entry ``index`` is marked any more."""
        bits, count = self._bits[index], rows * self._width
        # One look answers for nearly every step that has not begun.
        if not count or bits.item(count - 1) == UNWRITTEN:
            return not count
        # As unsigned integers the mark is above every other value.
        return int(np.maximum.reduce(bits[:count])) != UNWRITTEN

    def host(self, index: int) -> np.ndarray:
        """Return the pinned buffer of entry ``index``, float32 [max_requests, K], once fired or written."""
        return self._hosts[index]


class CudaRelay(RingRelay):
    """Bring confidences to pinned memory on the run stream; the host only asks whether they are there.

    What a graph sends can be read as soon as it is written, since each value shows it; what is copied, once
    its event has fired.

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
        device = torch.device(device)
        if queue is None and not (device.type == "cuda" and torch.cuda.is_available()):
            raise CapabilityError(
                "the device relay needs an accelerator with streams",
                arrived=str(device),
                allowed="a cuda device that is available",
                remedy="make the relay with make_relay(limits, device)",
            )
        require_depth(depth)
        super().__init__(limits, StreamQueue(limits, device, depth) if queue is None else queue, depth)
