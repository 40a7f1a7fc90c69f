"""The time that passes in a simulation: what a cost table says, whole steps, padding included."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from adaverify_replay.simulate.cursors import Batch
from adaverify_verification import CostModel, CostTable


class Clock:
    """Prices steps by a table that nothing corrects.

    Args:
        table: measured step times.
        tiers: captured token counts, rising; a batch executes at the next one.
        bare: request counts of captured steps that draft nothing, rising; empty where there are none.
    """

    def __init__(self, table: CostTable, tiers: tuple[int, ...], bare: tuple[int, ...] = ()) -> None:
        self._model = CostModel(table, online=False)
        self._model.set_tiers(tiers, bare)
        self._tiers, self._bare = tiers, bare

    def executed(self, tokens: int, *, drafting: bool = True) -> int:
        """Return the query tokens that execute for a batch of so many; ``drafting`` as in ``seconds``."""
        sizes = self._tiers if drafting or not self._bare else self._bare
        at = bisect_left(sizes, tokens)
        return sizes[at] if at < len(sizes) else tokens

    def seconds(self, batch: Batch, tokens: np.ndarray, *, drafting: bool) -> np.ndarray:
        """Return seconds of a whole step, float64 of the shape of ``tokens``, nothing being rejected.

        Args:
            batch: its requests and their KV lengths.
            tokens: int64, query tokens, padding not included.
            drafting: whether drafts are made. A step without them has one token a request; where drafting is
                a part of captured steps it is another step, with a price of its own.
        """
        context = float(batch.kv_lengths.mean())
        if not drafting and self._bare:
            price = self._model.bare_seconds(batch.requests, context)
            if price is not None:
                return np.full(np.shape(tokens), price)
        spent = self._model.seconds(tokens, batch.requests, context)
        return spent + (self._model.draft_seconds(batch.requests) if drafting else 0.0)

    def spent(self, batch: Batch, admitted: np.ndarray, accepted: np.ndarray, *, drafting: bool) -> float:
        """Return seconds of the step that verified ``admitted`` int64 [R], of which ``accepted`` were."""
        tokens = np.array(batch.requests + int(admitted.sum()))
        rejected = self._model.rejected_seconds * int((admitted - accepted).sum())
        return float(self.seconds(batch, tokens, drafting=drafting)) + rejected
