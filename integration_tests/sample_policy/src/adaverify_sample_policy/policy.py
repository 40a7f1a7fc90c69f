"""The policy: priced candidates in, the index of one out."""

from __future__ import annotations

import numpy as np
from adaverify_contracts import BudgetCandidates


class SamplePolicy:
    """The largest throughput among the budgets whose step is at most 10 % longer than verifying nothing."""

    ALLOWED = 1.10

    def choose(self, candidates: BudgetCandidates) -> int:
        """Return the index of the chosen candidate. Pure: equal input, equal output, on every rank."""
        quick = candidates.seconds <= self.ALLOWED * candidates.seconds[0]
        rates = np.where(quick, candidates.tokens / candidates.seconds, 0.0)
        return int(np.argmax(rates))
