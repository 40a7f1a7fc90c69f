"""The relay's contract and the ring that keeps it: confidences reach the host late, and nobody waits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from adaverify_contracts import LayoutError, Limits, LimitsError, PlanError, Snapshot

# Two entries would do for a lag of one step; four let a reader that is two steps behind still find the
# snapshot it may use while two copies are under way.
DEFAULT_DEPTH = 4

# What an entry holds: nothing, a publication whose values are not yet launched, one whose values are on their
# way, one that can be read.
_UNUSED, _BEGUN, _UNDER_WAY, _ARRIVED = range(4)


@runtime_checkable
class Relay(Protocol):
    """Carries confidences from the device to the planner without a host wait.

    ``publish`` does all of it. A step that runs from a graph takes it apart: ``begin`` on the host, ``send``
    inside the graph, ``launched`` on the host after the replay.
    """

    @property
    def dropped(self) -> int:
        """Publications that found no free entry, or were begun and never launched."""
        ...

    @property
    def bin(self) -> int:
        """Index of the entry that nobody reads: where ``send`` writes what is not published."""
        ...

    def publish(
        self, step: int, slots: np.ndarray, generations: np.ndarray, confidences: torch.Tensor
    ) -> None:
        """Enqueue the copy of one step's confidences: ``begin``, a copy, ``launched``.

        The copy is ordered on the current stream: what that stream does to the tensor later does not arrive.

        Args:
            step: step number.
            slots: int64 [R], request slots in row order; copied.
            generations: int64 [R], their generations at this step; copied.
            confidences: float32 [R, K] on the run device.

        Raises:
            LayoutError: shapes disagree or exceed the limits.
        """
        ...

    def begin(self, step: int, slots: np.ndarray, generations: np.ndarray) -> int | None:
        """Reserve an entry for one step's confidences and return its index; None when it is dropped.

        Host work only. After None let ``send`` write to ``bin``, and do not call ``launched``. An entry that
        was begun and never launched is given up here, and counted as dropped.

        Raises:
            LayoutError: shapes disagree or exceed the limits.
        """
        ...

    def send(self, confidences: torch.Tensor, entry: torch.Tensor) -> None:
        """Store confidences in the ring entry that a device scalar names. Capturable.

        Args:
            confidences: float32 [R, K] on the run device, dense rows; rows of padding requests may be there.
            entry: int32 [1] on the run device; an index that ``begin`` returned, else ``bin``. An index out
                of range counts as ``bin``.

        Raises:
            LayoutError: shapes or dtypes do not fit.
            CapabilityError: the kernel that stores them cannot run here.
        """
        ...

    def launched(self, index: int) -> None:
        """Say that what fills entry ``index`` is enqueued on the current stream; enqueue only.

        Raises:
            PlanError: no entry of that index was begun.
        """
        ...

    def latest(self, at_most: int | None = None) -> Snapshot | None:
        """Return the newest snapshot that has arrived, of a step <= ``at_most``; None when there is none.

        Never waits. Later publications do not change the snapshot's arrays; slots and generations are
        read-only.
        """
        ...

    def close(self) -> None:
        """Forget everything published; nothing is readable afterwards."""
        ...


class RingRelay(ABC):
    """A ring of entries, each unused, begun, under way or arrived; subclasses move the bytes.

    An entry that a graph writes may show by itself that its values are there; it is read then.
    An entry is written only when its last copy has arrived, and never while it is the newest arrived one, so
    that a stalled device leaves the reader its last snapshot. When no entry qualifies the publication is
    dropped and counted. The host's share is plain lists and one copy of what is handed in: publish and latest
    together have 20 us.

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
        self._depth = depth
        self._state = [_UNUSED] * depth
        # ``order`` counts publications, 0 for none: of two entries of one step the later is the newer.
        self._order = [0] * depth
        self._step = [-1] * depth
        # Made anew by each publication and never written again: its snapshots share them.
        self._slots = [_frozen(())] * depth
        self._generations = [_frozen(())] * depth
        # Which entries show by themselves that their values are there, before the work behind them is done.
        self._shows = [False] * depth
        self._begun: int | None = None
        self._published = 0
        self._dropped = 0

    @property
    def dropped(self) -> int:
        """Publications that found no free entry, or were begun and never launched."""
        return self._dropped

    @property
    def bin(self) -> int:
        """Index of the entry that nobody reads."""
        return self._depth

    def publish(
        self, step: int, slots: np.ndarray, generations: np.ndarray, confidences: torch.Tensor
    ) -> None:
        """Enqueue the copy of one step's confidences; see ``Relay.publish``."""
        self._check(slots, generations, confidences)
        index = self._reserve(step, slots, generations)
        if index is not None:
            self._copy(index, confidences)
            self.launched(index)

    def begin(self, step: int, slots: np.ndarray, generations: np.ndarray) -> int | None:
        """Reserve an entry and return its index, None when it is dropped; see ``Relay.begin``."""
        if not len(slots) == len(generations) <= self._limits.max_requests:
            raise self._misfit(slots, generations, None)
        # What was begun before may have been launched all the same, and would be taken for this step's.
        shows = self._begun is None
        index = self._reserve(step, slots, generations)
        if index is not None and shows:
            self._shows[index] = self._blank(index, len(slots))
        return index

    def launched(self, index: int) -> None:
        """Say that what fills entry ``index`` is enqueued; see ``Relay.launched``."""
        if index != self._begun:
            raise PlanError(
                "the relay's entry was not begun",
                arrived=index,
                allowed=f"{self._begun}, the entry begun last" if self._begun is not None else "nothing",
                remedy="call launched once after each begin that returned an index",
            )
        self._begun = None
        self._state[index] = _UNDER_WAY
        self._record(index)

    def send(self, confidences: torch.Tensor, entry: torch.Tensor) -> None:
        """Store confidences in the entry that a device scalar names; see ``Relay.send``."""
        shape = tuple(confidences.shape)
        width = self._limits.draft_tokens
        fits = (
            len(shape) == 2
            and shape[0] <= self._limits.max_requests
            and shape[1] == width
            and confidences.dtype == torch.float32
            and (width < 2 or confidences.stride(1) == 1)
            and tuple(entry.shape) == (1,)
            and entry.dtype == torch.int32
            and entry.device == confidences.device
        )
        if not fits:
            raise LayoutError(
                "confidences to send do not fit the relay",
                arrived={
                    "confidences": (str(confidences.dtype), shape, str(confidences.device)),
                    "entry": (str(entry.dtype), tuple(entry.shape), str(entry.device)),
                },
                allowed=f"float32 [R, {width}] in dense rows with R <= {self._limits.max_requests}, and "
                "int32 [1] on the same device",
                remedy="send the live confidences, and keep one int32 scalar for the entry",
            )
        self._send(confidences, entry)

    def latest(self, at_most: int | None = None) -> Snapshot | None:
        """Return the newest arrived snapshot of a step <= ``at_most``; see ``Relay.latest``."""
        best = self._newest(at_most)
        if best is None:
            return None
        slots = self._slots[best]
        return Snapshot(self._step[best], slots, self._generations[best], self._read(best, len(slots)))

    def close(self) -> None:
        """Forget everything published; nothing is readable afterwards."""
        for index, state in enumerate(self._state):
            # What is under way still writes its entry: that one is reused only once it has arrived.
            self._order[index], self._shows[index] = 0, False
            if state == _ARRIVED:
                self._state[index] = _UNUSED

    @abstractmethod
    def _copy(self, index: int, confidences: torch.Tensor) -> None:
        """Enqueue the copy of ``confidences`` into entry ``index`` on the current stream; never waits."""

    @abstractmethod
    def _send(self, confidences: torch.Tensor, entry: torch.Tensor) -> None:
        """Store ``confidences`` in the entry that ``entry`` names; capturable."""

    @abstractmethod
    def _record(self, index: int) -> None:
        """Mark the point of the current stream at which entry ``index`` has arrived."""

    @abstractmethod
    def _has_arrived(self, index: int) -> bool:
        """Return whether the point marked last for entry ``index`` has passed; never waits."""

    def _blank(self, index: int, requests: int) -> bool:
        """Make entry ``index``, which nothing writes to, show when values arrive; return whether it can."""
        return False

    def _is_written(self, index: int, requests: int) -> bool:
        """Return whether all values of an entry that was made blank are there; never waits."""
        return False

    @abstractmethod
    def _read(self, index: int, requests: int) -> np.ndarray:
        """Return a copy of entry ``index``, float32 [requests, K]."""

    def _reserve(self, step: int, slots: np.ndarray, generations: np.ndarray) -> int | None:
        index = self._writable()
        if index is None:
            self._dropped += 1
            return None
        self._published += 1
        self._state[index], self._begun, self._shows[index] = _BEGUN, index, False
        self._order[index], self._step[index] = self._published, step
        self._slots[index], self._generations[index] = _frozen(slots), _frozen(generations)
        return index

    def _poll(self, index: int) -> int:
        """Ask an entry under way whether it has arrived; return its state."""
        if self._has_arrived(index):
            self._state[index] = _ARRIVED if self._order[index] else _UNUSED
        return self._state[index]

    def _readable(self, index: int) -> bool:
        """Return whether an entry under way can be read.

        A step sends its confidences when it begins and its event fires when it has ended: the values of a
        step under way are there while it runs. To be written again, the entry waits for the event.
        """
        if self._shows[index] and self._is_written(index, len(self._slots[index])):
            return True
        return self._poll(index) == _ARRIVED

    def _newest(self, at_most: int | None) -> int | None:
        """Return the newest arrived entry of a step up to ``at_most``; later ones are not even asked."""
        best: int | None = None
        for index, state in enumerate(self._state):
            if state < _UNDER_WAY or (at_most is not None and self._step[index] > at_most):
                continue
            if state == _UNDER_WAY and not self._readable(index):
                continue
            if best is None or self._newer(index, best):
                best = index
        return best

    def _newer(self, index: int, other: int) -> bool:
        mine, theirs = self._step[index], self._step[other]
        return mine > theirs or (mine == theirs and self._order[index] > self._order[other])

    def _writable(self) -> int | None:
        """Return the entry to write: an unused one, else the oldest arrived one but the newest."""
        if self._begun is not None:
            # Its values may have been launched all the same. A later write of the same entry is ordered
            # behind them, so this entry is the one to take.
            self._dropped += 1
            return self._begun
        for polled in (False, True):
            state = self._state
            if polled:
                for index in range(self._depth):
                    if state[index] == _UNDER_WAY:
                        self._poll(index)
            if _UNUSED in state:
                return state.index(_UNUSED)
            if state.count(_ARRIVED) > 1:
                # Known without asking an event, and so the usual case of a reader that keeps up.
                oldest = newest = state.index(_ARRIVED)
                for index in range(oldest + 1, self._depth):
                    if state[index] == _ARRIVED:
                        if self._newer(oldest, index):
                            oldest = index
                        elif self._newer(index, newest):
                            newest = index
                return oldest
        return None

    def _check(self, slots: np.ndarray, generations: np.ndarray, confidences: torch.Tensor) -> None:
        requests = len(slots)
        if not (
            len(generations) == requests <= self._limits.max_requests
            and confidences.shape == (requests, self._limits.draft_tokens)
            and confidences.dtype == torch.float32
        ):
            raise self._misfit(slots, generations, confidences)

    def _misfit(
        self, slots: np.ndarray, generations: np.ndarray, confidences: torch.Tensor | None
    ) -> LayoutError:
        arrived: dict[str, object] = {"slots": len(slots), "generations": len(generations)}
        if confidences is not None:
            arrived["confidences"] = (str(confidences.dtype), tuple(confidences.shape))
        width = self._limits.draft_tokens
        return LayoutError(
            "published confidences do not fit the relay",
            arrived=arrived,
            allowed=f"[R], [R] and float32 [R, {width}] with R <= {self._limits.max_requests}",
            remedy="publish one row a request, for real requests only",
        )


def _frozen(values: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return a copy int64 [R] that nobody can write to."""
    copied = np.array(values, dtype=np.int64)
    copied.setflags(write=False)
    return copied
