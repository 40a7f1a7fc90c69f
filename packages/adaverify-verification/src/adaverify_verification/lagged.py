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


class LaggedReader:
    """Reads snapshots for the batches of one manager; what it made of the last one is kept.

    A snapshot cannot change, so a relay that has no newer one yet costs nothing a second time.

    Args:
        width: K.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._last: tuple[Snapshot, Ranking, str | None] | None = None

    def survivals(self, snapshot: Snapshot | None, state: StepState) -> Survivals:
        """Return what ``snapshot`` says of the requests of ``state``.

        A request that nothing is known of is optimistic, and so is a slot whose generation has changed.
        """
        if snapshot is None:
            return Survivals(optimistic(state, self._width), None, False, None)
        if self._last is None or self._last[0] is not snapshot:
            self._last = (snapshot, *_digested(snapshot.confidences))
        _, found, odd = self._last
        lag = state.step - snapshot.step
        if same_requests(snapshot.slots, snapshot.generations, state):
            return Survivals(found, lag, True, odd)
        row = lookup(snapshot.slots, snapshot.generations, state)
        known = row >= 0
        mixed = optimistic(state, self._width)
        mixed.scores[known] = found.scores[row[known]]
        return Survivals(mixed, lag, bool(known.all()), odd)


def optimistic(state: StepState, width: int) -> Ranking:
    """Return the survivals of requests that nothing is known of: every draft survives; ``width`` is K."""
    return Ranking(np.full((state.requests, width), SCORE_MAX, dtype=np.int32))


def _digested(confidences: np.ndarray) -> tuple[Ranking, str | None]:
    odd = oddity(confidences)
    # What is in range needs no cleaning.
    return Ranking(scores(confidences) if odd else clean_scores(confidences)), odd
