"""A plan that nobody chose: what a step of given size runs, for profiling."""

from __future__ import annotations

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
