"""The time that passes in a simulation: what a cost table says, whole steps, padding included."""

from __future__ import annotations

import numpy as np

from adaverify_replay.simulate.cursors import Batch
from adaverify_verification import CostModel, CostTable


class Clock:
    """Prices steps by a table that nothing corrects.

    Args:
        table: measured step times.
        tiers: captured token counts, rising; a batch executes at the next one.
    """

    def __init__(self, table: CostTable, tiers: tuple[int, ...]) -> None:
        self._model = CostModel(table, tiers, online=False)
        self._tiers = np.array(tiers, dtype=np.int64)

    def executed(self, tokens: int) -> int:
        """Return the query tokens that execute for a batch of so many."""
        at = int(np.searchsorted(self._tiers, tokens))
        return int(self._tiers[at]) if at < len(self._tiers) else tokens

    def seconds(self, batch: Batch, tokens: np.ndarray, *, drafting: bool) -> np.ndarray:
        """Return seconds of a whole step, float64 of the shape of ``tokens``, nothing being rejected.

        Args:
            batch: its requests and their KV lengths.
            tokens: int64, query tokens, padding not included.
            drafting: whether drafts are made.
        """
        spent = self._model.seconds(tokens, batch.requests, float(batch.kv_lengths.mean()))
        return spent + (self._model.draft_seconds(batch.requests) if drafting else 0.0)

    def spent(self, batch: Batch, admitted: np.ndarray, accepted: np.ndarray, *, drafting: bool) -> float:
        """Return seconds of the step that verified ``admitted`` int64 [R], of which ``accepted`` were."""
        tokens = np.array(batch.requests + int(admitted.sum()))
        rejected = self._model.rejected_seconds * int((admitted - accepted).sum())
        return float(self.seconds(batch, tokens, drafting=drafting)) + rejected
