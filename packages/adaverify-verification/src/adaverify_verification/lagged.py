"""What a budget may read: survivals of earlier steps, matched to the requests of this one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adaverify_contracts import Snapshot, StepState
from adaverify_verification.live import oddity
from adaverify_verification.quantise import SCORE_MAX, clean_scores, scores
from adaverify_verification.ranking import Ranking
from adaverify_verification.rows import lookup, same_requests


class Survivals(NamedTuple):
    """Quantised survivals of one batch.

    Attributes:
        ranking: of the batch's requests, in its order.
        lag: steps between the confidences and the budget; None where nothing was known.
        foreseen: whether every request's were known.
        odd: what odd confidences are counted as, else None.
    """

    ranking: Ranking
    lag: int | None
    foreseen: bool
    odd: str | None


class Digest(NamedTuple):
    """What a snapshot says, whoever asks: ``Survivals`` of its own requests without the lag."""

    snapshot: Snapshot
    ranking: Ranking
    odd: str | None


class LaggedReader:
    """Reads snapshots for the batches of one manager; what it made of the last two is kept.

    A snapshot cannot change, so a relay that has no newer one yet costs nothing a second time. Two, since the
    newest that has arrived and the newest that a budget may read can differ by one.

    Args:
        width: K.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._kept: tuple[Digest, ...] = ()

    def prepare(self, snapshot: Snapshot | None) -> Ranking | None:
        """Digest ``snapshot`` and return what it says; None where there was nothing to do.

        ``survivals`` then finds it done. Nothing is kept of one that cannot be digested.
        """
        if snapshot is None or any(one.snapshot is snapshot for one in self._kept):
            return None
        return self._digest(snapshot).ranking

    def survivals(self, snapshot: Snapshot | None, state: StepState) -> Survivals:
        """Return what ``snapshot`` says of the requests of ``state``.

        A request that nothing is known of is optimistic, and so is a slot whose generation has changed.
        """
        if snapshot is None:
            return Survivals(optimistic(state, self._width), None, False, None)
        kept = self._kept
        _, found, odd = kept[0] if kept and kept[0].snapshot is snapshot else self._digest(snapshot)
        lag = state.step - snapshot.step
        if same_requests(snapshot.slots, snapshot.generations, state):
            return Survivals(found, lag, True, odd)
        row = lookup(snapshot.slots, snapshot.generations, state)
        known = row >= 0
        mixed = optimistic(state, self._width)
        mixed.scores[known] = found.scores[row[known]]
        return Survivals(mixed, lag, bool(known.all()), odd)

    def _digest(self, snapshot: Snapshot) -> Digest:
        for one in self._kept:
            if one.snapshot is snapshot:
                return one
        made = _digested(snapshot)
        self._kept = (made, *self._kept[:1])
        return made


def optimistic(state: StepState, width: int) -> Ranking:
    """Return the survivals of requests that nothing is known of: every draft survives; ``width`` is K."""
    return Ranking(np.full((state.requests, width), SCORE_MAX, dtype=np.int32))


def _digested(snapshot: Snapshot) -> Digest:
    confidences = snapshot.confidences
    odd = oddity(confidences)
    # What is in range needs no cleaning.
    return Digest(snapshot, Ranking(scores(confidences) if odd else clean_scores(confidences)), odd)
