"""The best that any choice of verified drafts can do in a step: it knows which drafts are accepted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Prices = Callable[[np.ndarray], np.ndarray]
"""Seconds of a whole step, float64 [N], for query tokens int64 [N], padding not included."""


def best_admitted(accepted: np.ndarray, seconds: Prices) -> np.ndarray:
    """Return int64 [R], the drafts to verify that emit the most tokens a second in this step.

    Drafts that fail are never among them: they cost and do not gain. Each of the others gains one token, so
    every split of one budget emits as many, and all budgets from nothing to everything accepted are compared.
    Between equal rates the larger budget is taken.

    It looks at one step only: the ratio of each is maximised, and no step gives anything up for a later one.

    Args:
        accepted: int64 [R], the truth.
        seconds: of a step.
    """
    budgets = np.arange(int(accepted.sum()) + 1)
    tokens = len(accepted) + budgets
    rates = tokens / seconds(tokens)
    return spread(accepted, int(len(rates) - 1 - np.argmax(rates[::-1])))


def spread(accepted: np.ndarray, budget: int) -> np.ndarray:
    """Return int64 [R], ``budget`` drafts within the ``accepted``, first positions of all requests first.

    So that no request starves where the budget is less than what all of them together would get accepted.
    """
    admitted = np.zeros_like(accepted)
    left = budget
    for level in range(1, int(accepted.max(initial=0)) + 1):
        wanting = np.flatnonzero(accepted >= level)[:left]
        admitted[wanting] = level
        left -= len(wanting)
        if not left:
            break
    return admitted
