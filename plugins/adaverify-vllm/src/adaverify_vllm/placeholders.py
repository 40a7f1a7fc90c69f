"""The host's share of a budget: who gets how much is the device's to say, the host needs the total."""

from __future__ import annotations

import numpy as np


def even_placeholders(scheduled: np.ndarray, budget: int) -> np.ndarray:
    """Return placeholders of the scheduled dtype [R] that sum to ``budget``, as even as drafts allow.

    Args:
        scheduled: int [R], drafts of each request.
        budget: at least 0 and at most their sum.
    """
    least = int(scheduled.min()) if len(scheduled) else 0
    share, rest = divmod(budget, max(1, len(scheduled)))
    if 0 <= share < least:
        # The usual case, everybody drafted for alike: four NumPy calls.
        placeholders = np.full_like(scheduled, share)
        placeholders[:rest] += 1
        return placeholders
    placeholders = np.zeros_like(scheduled)
    drafted = np.flatnonzero(scheduled)
    if not len(drafted) or budget <= 0:
        return placeholders
    share, rest = divmod(budget, len(drafted))
    if int(scheduled[drafted].min()) >= share + (rest > 0):
        placeholders[drafted] = share
        placeholders[drafted[:rest]] += 1
        return placeholders
    # Someone has fewer drafts than an even share: raise the level at which everybody is cut.
    level = 0
    while int(np.minimum(scheduled, level + 1).sum()) <= budget and level < int(scheduled.max()):
        level += 1
    placeholders = np.minimum(scheduled, level)
    wanting = np.flatnonzero(scheduled > level)[: budget - int(placeholders.sum())]
    placeholders[wanting] += 1
    return placeholders
