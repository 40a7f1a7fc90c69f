"""The host's share of a budget: who gets how much is the device's to say, the host needs the total."""

from __future__ import annotations

import numpy as np


def even_placeholders(scheduled: np.ndarray, budget: int) -> np.ndarray:
    """Return placeholders of the scheduled dtype [R] that sum to ``budget``, as even as drafts allow.

    Args:
        scheduled: int [R], drafts of each request.
        budget: at least 0 and at most their sum.
    """
    placeholders = np.zeros(len(scheduled), scheduled.dtype)
    count = int(np.count_nonzero(scheduled))
    if not count or budget <= 0:
        return placeholders
    share, rest = divmod(budget, count)
    # vLLM sorts the requests that have drafts to the front; where that holds nothing has to be looked for.
    least = int(np.minimum.reduce(scheduled[:count]))
    drafted: slice | np.ndarray = slice(count)
    if not least:
        drafted = np.flatnonzero(scheduled)
        least = int(scheduled[drafted].min())
    if least >= share + (rest > 0):
        placeholders[drafted] = share
        placeholders[slice(rest) if isinstance(drafted, slice) else drafted[:rest]] += 1
        return placeholders
    # Someone has fewer drafts than an even share: raise the level at which everybody is cut.
    level = 0
    while int(np.minimum(scheduled, level + 1).sum()) <= budget and level < int(scheduled.max()):
        level += 1
    placeholders = np.minimum(scheduled, level)
    wanting = np.flatnonzero(scheduled > level)[: budget - int(placeholders.sum())]
    placeholders[wanting] += 1
    return placeholders
