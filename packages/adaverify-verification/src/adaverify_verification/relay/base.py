"""The relay's contract and the ring that keeps it: confidences reach the host late, and nobody waits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from adaverify_contracts import LayoutError, Limits, LimitsError, Snapshot

# Two entries would do for a lag of one step; four let a reader that is two steps behind still find the
# snapshot it may use while two copies are under way.
DEFAULT_DEPTH = 4


@runtime_checkable
class Relay(Protocol):
    """Carries confidences from the device to the planner without a host wait."""

    @property
    def dropped(self) -> int:
        """Publications that found no free entry and were dropped."""
        ...

    def publish(
        self, step: int, slots: np.ndarray, generations: np.ndarray, confidences: torch.Tensor
    ) -> None:
        """Enqueue the copy of one step's confidences; the tensor may be rewritten as soon as this returns.

        Args:
            step: step number.
            slots: int64 [R], request slots in row order; copied.
            generations: int64 [R], their generations at this step; copied.
            confidences: float32 [R, K] on the run device.

        Raises:
            LayoutError: shapes disagree or exceed the limits.
        """
        ...

    def latest(self, at_most: int | None = None) -> Snapshot | None:
        """Return the newest snapshot that has arrived, of a step <= ``at_most``; None when there is none.

        Never waits. The snapshot owns its arrays: later publications do not change them.
        """
        ...

    def close(self) -> None:
        """Forget everything published; nothing is readable afterwards."""
        ...


@dataclass(slots=True)
class _Entry:
    """One ring entry; ``order`` counts publications, 0 means never written."""

    order: int = 0
    step: int = -1
    arrived: bool = True
    slots: np.ndarray | None = None
    generations: np.ndarray | None = None


class RingRelay(ABC):
    """A ring of entries, each free, under way or arrived; subclasses move the bytes.

    An entry is written only when its last copy has arrived, and never while it is the newest arrived one, so
    that a stalled device leaves the reader its last snapshot. When no entry qualifies the publication is
    dropped and counted.

    Args:
        limits: sizes of the entries.
        depth: entries, at least 2.
    """

    def __init__(self, limits: Limits, depth: int = DEFAULT_DEPTH) -> None:
        if depth < 2:
            raise LimitsError(
                "the relay's depth is out of range",
                arrived=depth,
                allowed="at least 2: one entry to read while another is written",
                remedy=f"keep the default of {DEFAULT_DEPTH}",
            )
        self._limits = limits
        self._entries = [_Entry() for _ in range(depth)]
        self._published = 0
        self._dropped = 0

    @property
    def dropped(self) -> int:
        """Publications that found no free entry and were dropped."""
        return self._dropped

    def publish(
        self, step: int, slots: np.ndarray, generations: np.ndarray, confidences: torch.Tensor
    ) -> None:
        """Enqueue the copy of one step's confidences; see ``Relay.publish``."""
        self._check(slots, generations, confidences)
        index = self._writable()
        if index is None:
            self._dropped += 1
            return
        self._published += 1
        entry = self._entries[index]
        entry.order, entry.step, entry.arrived = self._published, step, False
        entry.slots, entry.generations = slots.copy(), generations.copy()
        self._enqueue(index, confidences)

    def latest(self, at_most: int | None = None) -> Snapshot | None:
        """Return the newest arrived snapshot of a step <= ``at_most``; see ``Relay.latest``."""
        self._poll()
        best: int | None = None
        for index, entry in enumerate(self._entries):
            if not entry.order or not entry.arrived or (at_most is not None and entry.step > at_most):
                continue
            if best is None or self._age(index) > self._age(best):
                best = index
        if best is None:
            return None
        entry = self._entries[best]
        assert entry.slots is not None and entry.generations is not None  # noqa: S101 - our own state
        confidences = self._read(best, len(entry.slots))
        return Snapshot(entry.step, entry.slots.copy(), entry.generations.copy(), confidences)

    def close(self) -> None:
        """Forget everything published; nothing is readable afterwards."""
        for entry in self._entries:
            entry.step, entry.order, entry.slots, entry.generations = -1, 0, None, None

    @abstractmethod
    def _enqueue(self, index: int, confidences: torch.Tensor) -> None:
        """Start copying ``confidences`` into entry ``index``; never waits."""

    @abstractmethod
    def _has_arrived(self, index: int) -> bool:
        """Return whether the last copy into entry ``index`` is complete; never waits."""

    @abstractmethod
    def _read(self, index: int, requests: int) -> np.ndarray:
        """Return a copy of entry ``index``, float32 [requests, K]."""

    def _age(self, index: int) -> tuple[int, int]:
        entry = self._entries[index]
        return entry.step, entry.order

    def _poll(self) -> None:
        for index, entry in enumerate(self._entries):
            if not entry.arrived and self._has_arrived(index):
                entry.arrived = True

    def _writable(self) -> int | None:
        """Return the entry to overwrite: an unused one, else the oldest arrived one but the newest."""
        self._poll()
        arrived = [index for index, entry in enumerate(self._entries) if entry.arrived]
        unused = [index for index in arrived if not self._entries[index].order]
        if unused:
            return unused[0]
        arrived.sort(key=self._age)
        return arrived[0] if len(arrived) > 1 else None

    def _check(self, slots: np.ndarray, generations: np.ndarray, confidences: torch.Tensor) -> None:
        requests = len(slots)
        width = self._limits.draft_tokens
        if (
            len(generations) == requests <= self._limits.max_requests
            and tuple(confidences.shape) == (requests, width)
            and confidences.dtype == torch.float32
        ):
            return
        raise LayoutError(
            "published confidences do not fit the relay",
            arrived={
                "slots": requests,
                "generations": len(generations),
                "confidences": (str(confidences.dtype), tuple(confidences.shape)),
            },
            allowed=f"[R], [R] and float32 [R, {width}] with R <= {self._limits.max_requests}",
            remedy="publish one row a request, for real requests only",
        )
