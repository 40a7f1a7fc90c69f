"""Whether an outcome is that of its plan: one that is not teaches nothing."""

from __future__ import annotations

import numpy as np

from adaverify_contracts import Plan, PlanError, StepOutcome, StepState
from adaverify_verification.cost_model import CostModel
from adaverify_verification.host_floor import host_bound
from adaverify_verification.rows import same_requests, same_values


def require_kinds(outcome: object, plan: object) -> None:
    """Require a ``StepOutcome`` and a ``Plan``.

    Raises:
        PlanError: either is something else.
    """
    for value, kind in ((outcome, StepOutcome), (plan, Plan)):
        if not isinstance(value, kind):
            raise PlanError(
                "what is to be observed is no outcome with its plan",
                arrived=type(value).__name__,
                allowed=f"a {kind.__name__}",
                remedy="observe each step once, with its StepOutcome and the Plan it ran",
            )


def misfits_of(outcome: StepOutcome, plan: Plan, state: StepState | None) -> tuple[str, ...]:
    """Return how an outcome differs from its plan, by the names that are counted; empty when it fits.

    Args:
        outcome: what the engine reports.
        plan: the plan it reports it for.
        state: the open step of that number, None when there is none.
    """
    found = []
    if state is None or outcome.step != plan.step:
        found.append("outcome-of-another-step")
    if state is not None and not same_requests(outcome.slots, outcome.generations, state):
        found.append("outcome-of-other-requests")
    if outcome.total_admitted != plan.budget:
        found.append("verified-not-planned")
    if not _as_scheduled(outcome, plan, state):
        found.append("drafted-not-scheduled")
    if state is not None and outcome.emitted > _most_emitted(outcome, state):
        found.append("emitted-not-verified")
    return tuple(found)


def remarks_on(outcome: StepOutcome) -> tuple[str, ...]:
    """Return what is worth counting of an outcome that teaches all the same, by name."""
    seconds, host = outcome.seconds, outcome.host_seconds
    # A byte of the answers that is False, found in half the time that counting them takes.
    invalid = 0 in np.isfinite(outcome.scores).tobytes()
    found = ("invalid-scores",) if invalid else ()
    bound = bool(seconds) and host is not None and host_bound(host, seconds or 0.0)
    return (*found, "host-bound") if bound else found


def verification_seconds(outcome: StepOutcome, seconds: float, plan: Plan, cost: CostModel) -> float:
    """Return a step's seconds without its drafting and its rejected drafts: what the table prices.

    Args:
        outcome: of the step; seconds: its whole time.
        plan: of the step.
        cost: prices of drafting and of rejected drafts.
    """
    draft = cost.draft_seconds(plan.requests) if plan.scheduled else 0.0
    rejected = cost.rejected_seconds * (outcome.total_admitted - outcome.total_accepted)
    # Parts priced above the whole say that the table is wrong, not that the step took no time.
    return max(seconds - draft - rejected, 0.01 * seconds)


def _as_scheduled(outcome: StepOutcome, plan: Plan, state: StepState | None) -> bool:
    if outcome.total_drafted != plan.scheduled:
        return False
    if state is None or len(outcome.drafted) != state.requests:
        return True
    return same_values(outcome.drafted, state.scheduled)


def _most_emitted(outcome: StepOutcome, state: StepState) -> int:
    """Return the most tokens the step can have emitted: accepted drafts, and one for each that emits."""
    return outcome.total_accepted + max(state.requests, state.emitting)
