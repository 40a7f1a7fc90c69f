"""One entry of the relay's ring, as the host knows it."""

from __future__ import annotations

from adaverify_contracts import Snapshot
from adaverify_verification.rows import frozen

# What an entry holds: nothing, a publication whose values are not yet launched, one whose values are on their
# way, one that can be read.
UNUSED, BEGUN, UNDER_WAY, ARRIVED = range(4)


class Entry:
    """State and owner of one entry.

    Attributes:
        index: its place in the ring.
        state: ``UNUSED``, ``BEGUN``, ``UNDER_WAY`` or ``ARRIVED``.
        order: which publication it is, 0 for one that was forgotten.
        step: step that published.
        slots: int64 [R], read-only.
        generations: int64 [R], read-only.
        shows: whether its values show by themselves that they are there, before the work behind them is done.
        snapshot: what was read of it, None before the first time.
    """

    __slots__ = ("generations", "index", "order", "shows", "slots", "snapshot", "state", "step")

    def __init__(self, index: int) -> None:
        self.index = index
        self.state, self.order, self.step, self.shows = UNUSED, 0, -1, False
        self.slots = self.generations = frozen(())
        self.snapshot: Snapshot | None = None
