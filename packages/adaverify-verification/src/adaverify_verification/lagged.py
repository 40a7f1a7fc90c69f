"""What a budget may read: survivals of earlier steps, matched to the requests of this one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adaverify_contracts import Snapshot, StepState
from adaverify_verification.live import oddity
from adaverify_verification.quantise import SCORE_MAX, products, quantise, scores
from adaverify_verification.rows import lookup, same_requests


class Survivals(NamedTuple):
    """Quantised survivals of one batch.

    Attributes:
        quantised: int32 [R, K].
        lag: steps between the confidences and the budget; None where nothing was known.
        foreseen: whether every request's were known.
        odd: what odd confidences are counted as, else None.
    """

    quantised: np.ndarray
    lag: int | None
    foreseen: bool
    odd: str | None


def survivals(snapshot: Snapshot | None, state: StepState, width: int) -> Survivals:
    """Return what ``snapshot`` says of the requests of ``state``; ``width`` is K.

    A request that nothing is known of is optimistic, and so is a slot whose generation has changed.
    """
    if snapshot is None:
        return Survivals(_optimistic(state, width), None, False, None)
    odd, lag = oddity(snapshot.confidences), state.step - snapshot.step
    # What is in range needs no cleaning.
    found = scores(snapshot.confidences) if odd else quantise(products(snapshot.confidences))
    if same_requests(snapshot.slots, snapshot.generations, state):
        return Survivals(found, lag, True, odd)
    row = lookup(snapshot.slots, snapshot.generations, state)
    known = row >= 0
    quantised = _optimistic(state, width)
    quantised[known] = found[row[known]]
    return Survivals(quantised, lag, bool(known.all()), odd)


def _optimistic(state: StepState, width: int) -> np.ndarray:
    return np.full((state.requests, width), SCORE_MAX, dtype=np.int32)
