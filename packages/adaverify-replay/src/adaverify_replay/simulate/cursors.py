"""Where each request stands in the records: the one rule by which admitted drafts move it on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaverify_contracts import LayoutError
from adaverify_replay.records import REGIMES, AcceptanceRecords

_SAMPLED = REGIMES.index("sampled")


@dataclass(frozen=True, slots=True)
class Batch:
    """Where R requests stood when a step began, and what is true there.

    Attributes:
        generations: int64 [R], how many requests each slot has held before this one.
        sequences: int64 [R].
        kv_lengths: int64 [R].
        sampled: bool [R].
        scores: float32 [R, K], the drafter's raw scores.
        accepted: int64 [R], drafts that are accepted where all are verified.
    """

    generations: np.ndarray
    sequences: np.ndarray
    kv_lengths: np.ndarray
    sampled: np.ndarray
    scores: np.ndarray
    accepted: np.ndarray

    @property
    def requests(self) -> int:
        """R."""
        return len(self.accepted)

    @property
    def slots(self) -> np.ndarray:
        """int64 [R], request slots in row order."""
        return np.arange(self.requests)

    def scores_of(self, drafted: int) -> np.ndarray:
        """Return the scores float32 [R, K] where ``drafted`` drafts are scheduled, 0 behind them."""
        scores = self.scores.copy()
        scores[:, drafted:] = 0.0
        return scores


class Cursors:
    """R requests that walk over recorded sequences.

    A request whose drafts were admitted up to n at position p has min(n, accepted[p]) of them accepted and
    goes on at p + accepted + 1. Behind the end of its sequence it begins the next sequence of an order that
    all requests share, as another request of its slot would; or, with ``stay``, its own again, as many
    positions behind the start as it was behind the end.

    Args:
        records: the truth.
        order: int64 [N], sequences in the order in which they are begun; repeated without end.
        requests: R, at least 1.
        stay: whether a request keeps its sequence. Request r then walks over ``order[r % N]``.

    Raises:
        LayoutError: no request, no sequence, or one that the records do not have.
    """

    def __init__(
        self, records: AcceptanceRecords, order: np.ndarray, requests: int, *, stay: bool = False
    ) -> None:
        order = np.asarray(order, dtype=np.int64)
        known = len(order) and int(order.min()) >= 0 and int(order.max()) < records.sequences
        if requests < 1 or not known:
            raise LayoutError(
                "there is nothing to walk over",
                arrived={"requests": requests, "sequences": order[:8].tolist()},
                allowed=f"at least one request, and sequences in 0 .. {records.sequences - 1}",
                remedy="choose sequences with AcceptanceRecords.of(...)",
            )
        self._records, self._order, self._stay = records, order, stay
        self._begun = requests
        self.sequence = order[np.arange(requests) % len(order)]
        """int64 [R], sequence of each request."""
        self.position = records.starts[self.sequence].copy()
        """int64 [R], position of each request among all positions of the records."""
        self.generation = np.zeros(requests, dtype=np.int64)
        """int64 [R], how many requests each slot has held before this one."""

    @property
    def requests(self) -> int:
        """R."""
        return len(self.sequence)

    @property
    def accepted(self) -> np.ndarray:
        """int64 [R], drafts that are accepted where all are verified: the truth."""
        return self._records.accepted[self.position].astype(np.int64)

    def batch(self, context: int | None = None) -> Batch:
        """Return where the requests stand.

        Args:
            context: KV length at the start of each sequence; as recorded when None.
        """
        records = self._records
        begun = records.contexts[self.sequence].astype(np.int64) if context is None else context
        return Batch(
            generations=self.generation.copy(),
            sequences=self.sequence.copy(),
            kv_lengths=begun + self.position - records.starts[self.sequence],
            sampled=records.regime[self.sequence] == _SAMPLED,
            scores=records.scores[self.position].astype(np.float32),
            accepted=self.accepted,
        )

    def advance(self, admitted: np.ndarray) -> np.ndarray:
        """Move every request on, ``admitted`` int64 [R] drafts verified; return int64 [R], those accepted."""
        accepted = np.minimum(admitted, self.accepted)
        self.position += accepted + 1
        over = self.position - self._records.starts[self.sequence + 1]
        for row in np.flatnonzero(over >= 0):
            self._restart(int(row), int(over[row]))
        return accepted

    def _restart(self, row: int, over: int) -> None:
        if self._stay:
            # A sequence may be shorter than a step is long.
            length = int(self._records.lengths[self.sequence[row]])
            self.position[row] = self._records.starts[self.sequence[row]] + over % length
            return
        self.sequence[row] = self._order[self._begun % len(self._order)]
        self._begun += 1
        self.position[row] = self._records.starts[self.sequence[row]]
        self.generation[row] += 1
