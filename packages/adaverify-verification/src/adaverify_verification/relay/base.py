"""The relay's contract and the ring that keeps it: confidences reach the host late, and nobody waits."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import torch

from adaverify_contracts import LayoutError, Limits, LimitsError, PlanError, Snapshot
from adaverify_verification.relay.entry import ARRIVED, BEGUN, UNDER_WAY, UNUSED, Entry
from adaverify_verification.rows import frozen, kept

# Two entries would do for a lag of one step; four let a reader that is two steps behind still find the
# snapshot it may use while two copies are under way.
DEFAULT_DEPTH = 4


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

        Never waits. Later publications do not change the snapshot's arrays, nor may anybody else: what is
        read again may be the same object.
        """
        ...

    def close(self) -> None:
        """Forget everything published; nothing is readable afterwards."""
        ...


class CopyQueue(Protocol):
    """What the relay asks of a device: a pinned ring with one entry more, the bin, and an event an entry."""

    def copy(self, index: int, confidences: torch.Tensor) -> None:
        """Enqueue device -> host for entry ``index`` on the current stream; return at once."""
        ...

    def send(self, confidences: torch.Tensor, entry: torch.Tensor) -> None:
        """Store confidences in the entry that the device scalar ``entry`` names; capturable."""
        ...

    def record(self, index: int) -> None:
        """Record the event of entry ``index`` on the current stream; return at once."""
        ...

    def fired(self, index: int) -> bool:
        """Return whether the event of entry ``index`` has fired; never wait."""
        ...

    def blank(self, index: int, rows: int) -> bool:
        """Mark the first ``rows`` of entry ``index``, which nothing writes to, as not written.

        Returns whether ``written`` can tell; False where an entry is read once its event has fired.
        """
        ...

    def written(self, index: int, rows: int) -> bool:
        """Return whether no value of the first ``rows`` of entry ``index`` is marked any more; never wait."""
        ...

    def host(self, index: int) -> np.ndarray:
        """Return the host buffer of entry ``index``, float32 [max_requests, K], once fired or written."""
        ...


class RingRelay:
    """A ring of entries, each unused, begun, under way or arrived; a queue moves the bytes.

    An entry that a graph writes may show by itself that its values are there; it is read then.
    An entry is written only when its last copy has arrived, and never while it is the newest arrived one, so
    that a stalled device leaves the reader its last snapshot. When no entry qualifies the publication is
    dropped and counted. The host's share is a short list in the order of steps: publish and latest together
    have 20 us. Of entries under way only those are asked that could be the answer.

    Args:
        limits: sizes of the entries.
        queue: of the device, with as many entries and the bin.
        depth: entries, at least 2.
    """

    def __init__(self, limits: Limits, queue: CopyQueue, depth: int) -> None:
        require_depth(depth)
        self._limits = limits
        self._queue = queue
        self._entries = [Entry(index) for index in range(depth)]
        # Unused ones, the one to take first last.
        self._unused = self._entries[::-1]
        # What is under way or arrived and may be read, the newest step first.
        self._line: list[Entry] = []
        self._begun: Entry | None = None
        # What was published last, read-only: a decode batch repeats, and its snapshots share these.
        self._slots = self._generations = frozen(())
        self._published = 0
        self._dropped = 0

    @property
    def dropped(self) -> int:
        """Publications that found no free entry, or were begun and never launched."""
        return self._dropped

    @property
    def bin(self) -> int:
        """Index of the entry that nobody reads."""
        return len(self._entries)

    def publish(
        self, step: int, slots: np.ndarray, generations: np.ndarray, confidences: torch.Tensor
    ) -> None:
        """Enqueue the copy of one step's confidences; see ``Relay.publish``."""
        self._check(slots, generations, confidences)
        index = self._reserve(step, slots, generations)
        if index is not None:
            self._queue.copy(index, confidences)
            self.launched(index)

    def begin(self, step: int, slots: np.ndarray, generations: np.ndarray) -> int | None:
        """Reserve an entry and return its index, None when it is dropped; see ``Relay.begin``."""
        if not len(slots) == len(generations) <= self._limits.max_requests:
            raise self._misfit(slots, generations, None)
        # What was begun before may have been launched all the same, and would be taken for this step's.
        shows = self._begun is None
        index = self._reserve(step, slots, generations)
        if index is not None and shows:
            self._entries[index].shows = self._queue.blank(index, len(slots))
        return index

    def launched(self, index: int) -> None:
        """Say that what fills entry ``index`` is enqueued; see ``Relay.launched``."""
        entry = self._begun
        if entry is None or index != entry.index:
            raise PlanError(
                "the relay's entry was not begun",
                arrived=index,
                allowed="nothing" if entry is None else f"{entry.index}, the entry begun last",
                remedy="call launched once after each begin that returned an index",
            )
        self._begun, entry.state = None, UNDER_WAY
        if entry.order:
            line, place = self._line, 0
            # Nearly always it is the newest; of two of one step the later publication is.
            while place < len(line) and line[place].step > entry.step:
                place += 1
            line.insert(place, entry)
        self._queue.record(index)

    def send(self, confidences: torch.Tensor, entry: torch.Tensor) -> None:
        """Store confidences in the entry that a device scalar names; see ``Relay.send``."""
        require_sendable(confidences, entry, self._limits)
        self._queue.send(confidences, entry)

    def latest(self, at_most: int | None = None) -> Snapshot | None:
        """Return the newest arrived snapshot of a step <= ``at_most``; see ``Relay.latest``."""
        for entry in self._line:
            if at_most is not None and entry.step > at_most:
                continue
            if entry.snapshot is not None:
                return entry.snapshot
            if entry.state == ARRIVED or self._readable(entry):
                return self._snapshot(entry)
        return None

    def close(self) -> None:
        """Forget everything published; nothing is readable afterwards."""
        self._line.clear()
        for entry in self._entries:
            # What is under way still writes its entry: that one is reused only once it has arrived.
            entry.order = 0
            if entry.state == ARRIVED:
                self._free(entry)

    def _reserve(self, step: int, slots: np.ndarray, generations: np.ndarray) -> int | None:
        entry = self._known_writable() if self._begun is None else self._given_up(self._begun)
        if entry is None:
            entry = self._asked_writable()
        if entry is None:
            self._dropped += 1
            return None
        self._published += 1
        self._slots, self._generations = kept(self._slots, slots), kept(self._generations, generations)
        entry.state, entry.order, entry.step, entry.snapshot = BEGUN, self._published, step, None
        entry.slots, entry.generations, entry.shows = self._slots, self._generations, False
        self._begun = entry
        return entry.index

    def _snapshot(self, entry: Entry) -> Snapshot:
        confidences = self._queue.host(entry.index)[: len(entry.slots)].copy()
        confidences.setflags(False)
        entry.snapshot = Snapshot(entry.step, entry.slots, entry.generations, confidences)
        return entry.snapshot

    def _readable(self, entry: Entry) -> bool:
        """Return whether an entry under way can be read.

        A step sends its confidences when it begins and its event fires when it has ended: the values of a
        step under way are there while it runs. To be written again, the entry waits for the event.
        """
        if entry.shows:
            if self._queue.written(entry.index, len(entry.slots)):
                return True
            # The step launched last has not begun: its event, a call of some microseconds, has not fired.
            if entry is self._line[0]:
                return False
        return self._poll(entry) == ARRIVED

    def _poll(self, entry: Entry) -> int:
        """Ask an entry under way whether it has arrived; return its state."""
        if self._queue.fired(entry.index):
            if entry.order:
                entry.state = ARRIVED
            else:
                self._free(entry)
        return entry.state

    def _free(self, entry: Entry) -> None:
        entry.state = UNUSED
        self._unused.append(entry)

    def _given_up(self, begun: Entry) -> Entry:
        """Return an entry that was begun and never launched, for the next publication."""
        # Its values may have been launched all the same. A later write of the same entry is ordered behind
        # them, so this entry is the one to take.
        self._dropped += 1
        return begun

    def _asked_writable(self) -> Entry | None:
        """Return the entry to write after asking those under way, the oldest first, until one is found."""
        forgotten = [entry for entry in self._entries if entry.state == UNDER_WAY and not entry.order]
        for entry in (*forgotten, *self._line[::-1]):
            if entry.state == UNDER_WAY and self._poll(entry) != UNDER_WAY:
                found = self._known_writable()
                if found is not None:
                    return found
        return None

    def _known_writable(self) -> Entry | None:
        """Return the entry to write: an unused one, else the oldest arrived one but the newest readable.

        No event is asked.
        """
        if self._unused:
            return self._unused.pop()
        newest = oldest = None
        for entry in self._line:
            if newest is None and (entry.state == ARRIVED or entry.snapshot is not None):
                newest = entry
            elif entry.state == ARRIVED:
                oldest = entry
        if oldest is not None:
            self._line.remove(oldest)
        return oldest

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


def require_depth(depth: int) -> None:
    """Require a number of entries that a ring can have.

    Raises:
        LimitsError: fewer than 2.
    """
    if depth < 2:
        raise LimitsError(
            "the relay's depth is out of range",
            arrived=depth,
            allowed="at least 2: one entry to read while another is written",
            remedy=f"keep the default of {DEFAULT_DEPTH}",
        )


def require_sendable(confidences: torch.Tensor, entry: torch.Tensor, limits: Limits) -> None:
    """Require what ``Relay.send`` takes.

    Raises:
        LayoutError: shapes, dtypes or devices do not fit.
    """
    shape, width = tuple(confidences.shape), limits.draft_tokens
    fits = (
        len(shape) == 2
        and shape[0] <= limits.max_requests
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
            allowed=f"float32 [R, {width}] in dense rows with R <= {limits.max_requests}, and "
            "int32 [1] on the same device",
            remedy="send the live confidences, and keep one int32 scalar for the entry",
        )
