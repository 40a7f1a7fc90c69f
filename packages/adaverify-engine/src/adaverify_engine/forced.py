"""A plan that nobody chose: what a step of given size runs, for profiling."""

from __future__ import annotations

import numpy as np

from adaverify_contracts import Plan, PlanState, StepState


def forced_plan(state: StepState, budget: int, tiers: tuple[int, ...] = ()) -> Plan:
    """Return the plan that verifies ``budget`` drafts of ``state``."""
    lengths = set(state.scheduled.tolist())
    full = budget == state.max_budget
    tokens = state.certain_tokens + budget
    return Plan(
        step=state.step,
        state=PlanState.FULL,
        reason="profiling",
        budget=budget,
        scheduled=state.max_budget,
        requests=state.requests,
        certain_tokens=state.certain_tokens,
        tokens=tokens,
        tier=min((tier for tier in tiers if tier >= tokens), default=tokens),
        uniform_query_len=lengths.pop() + 1 if full and len(lengths) == 1 else None,
        predicted_seconds=None,
        predicted_tokens=float(state.emitting),
        full_seconds=None,
        full_tokens=float(state.emitting),
        lag=None,
        digest=0,
    )


def ranked_counts(random: np.random.Generator, requests: int, width: int, count: int) -> np.ndarray:
    """Return how many drafts of each request are verified where confidences rank ``count``, int64 [requests].

    Requests differ: each accepts a draft with a probability of its own, 0.3 .. 1, and drafts survive with its
    powers. Spread evenly or at random, the longest query would be shorter than in service, where some request
    is sure of all its drafts, and where steps pay by the longest query, small ones would be priced too low.

    Args:
        random: draws the probabilities.
        requests: R.
        width: K.
        count: drafts verified, 0 .. R x K.
    """
    survivals = random.uniform(0.3, 1.0, size=(requests, 1)) ** np.arange(1, width + 1)
    chosen = np.argsort(-survivals, axis=None, kind="stable")[:count]
    return np.bincount(chosen // max(1, width), minlength=requests).astype(np.int64)
