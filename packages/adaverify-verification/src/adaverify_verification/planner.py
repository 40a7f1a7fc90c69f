"""Price every candidate budget of one step, and write a decision down as a plan."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adaverify_contracts import BudgetCandidates, Limits, Plan, PlanError, PlanState, StepState
from adaverify_verification.cost_model import CostModel
from adaverify_verification.digest import plan_digest
from adaverify_verification.ranking import Ranking
from adaverify_verification.tiers import Tiers


class Prospects(NamedTuple):
    """What each candidate budget of one step buys and costs.

    Attributes:
        budgets: int64 [C], rising, 0 first, everything last.
        executed: int64 [C], query tokens that execute, padding included.
        tokens: float64 [C], tau.
        seconds: float64 [C], whole-step seconds, None when unpriced.
    """

    budgets: np.ndarray
    executed: np.ndarray
    tokens: np.ndarray
    seconds: np.ndarray | None

    def candidates(self, rate: float | None) -> BudgetCandidates:
        """Return the form that policies read.

        Raises:
            PlanError: the step is unpriced.
        """
        budgets, _, tokens, seconds = self
        if seconds is None:
            raise PlanError(
                "an unpriced step has no candidates to choose from",
                allowed="a step priced from a cost table",
                remedy="ask CostModel.priced first",
            )
        # A policy that writes into what it is shown would change the plan behind the planner's back.
        budgets.setflags(False)
        tokens.setflags(False)
        seconds.setflags(False)
        return BudgetCandidates(budgets, tokens, seconds, rate)


def context_of(state: StepState) -> float:
    """Return the mean KV length of the decode requests, 0 without any: the cost table's context axis."""
    requests = state.requests
    return state.kv_tokens / requests if requests else 0.0


def only(budget: int) -> np.ndarray:
    """Return the one budget to survey, int64 [1]."""
    return np.array([budget], dtype=np.int64)


def survey(
    state: StepState,
    ranking: Ranking,
    cost: CostModel,
    tiers: Tiers,
    *,
    budgets: np.ndarray | None = None,
    whole: np.ndarray | None = None,
    bare: bool = False,
) -> Prospects:
    """Return the prospects of one step (maths sections 1 to 3).

    Args:
        state: the step.
        ranking: its requests' survivals.
        cost: prices; an unpriced model leaves ``seconds`` None.
        tiers: those that this step's batch is padded to, possibly none.
        budgets: int64, the budgets to look at; None looks at every one that can be optimal.
        whole: bool [R], requests that every budget verifies whole, and that fit; None for none.
        bare: True for a captured step that drafts nothing, which has prices of its own.
    """
    floor, certain, free = 0, 0.0, state.scheduled
    if whole is not None:
        free = np.where(whole, 0, state.scheduled)
        kept = state.scheduled - free
        floor, certain = int(kept.sum()), ranking.worth_of(kept)
    certain_tokens = state.certain_tokens
    if budgets is None:
        # Undoing rejected tokens makes cost rise inside a tier too: its end is then not the only optimum.
        every = cost.undoes
        spare, executed = tiers.candidates(certain_tokens + floor, state.max_budget - floor, every)
        budgets = floor + spare if floor else spare
    else:
        spare, executed = budgets - floor, tiers.executed(certain_tokens + budgets)
    tokens = ranking.tokens(free, state.total_scheduled - floor, spare, state.emitting)
    if certain:
        tokens = tokens + certain
    if bare:
        price = cost.bare_seconds(state.requests, context_of(state)) if cost.priced else None
        return Prospects(budgets, executed, tokens, None if price is None else np.full(len(budgets), price))
    return Prospects(budgets, executed, tokens, _seconds(state, cost, budgets, executed, tokens))


def _seconds(
    state: StepState, cost: CostModel, budgets: np.ndarray, executed: np.ndarray, tokens: np.ndarray
) -> np.ndarray | None:
    if not cost.priced:
        return None
    requests = state.requests
    seconds = cost.executed_seconds(executed, requests, context_of(state))
    draft = cost.draft_seconds(requests) if state.max_budget else 0.0
    if draft:
        seconds += draft
    if cost.undoes:
        seconds += cost.rejected_seconds * (budgets - (tokens - state.emitting))
    return seconds


def check_fits(state: StepState, limits: Limits) -> None:
    """Require that a step fits the largest shapes.

    Raises:
        PlanError: it is no ``StepState``, or has more requests, drafts or slots than the limits hold.
    """
    if not isinstance(state, StepState):
        raise PlanError(
            "what is to be planned is no step",
            arrived=type(state).__name__,
            allowed="a StepState",
            remedy="describe the step with StepState(...)",
        )
    most, highest = state.most_scheduled, state.highest_slot
    if state.requests > limits.max_requests or most > limits.draft_tokens or highest >= limits.max_requests:
        raise PlanError(
            "the step does not fit the limits",
            arrived={"requests": state.requests, "most scheduled drafts": most, "highest slot": highest},
            allowed=f"at most {limits.max_requests} requests with {limits.draft_tokens} drafts each, "
            f"in slots 0 .. {limits.max_requests - 1}",
            remedy="build Limits for the largest batch and the K in force",
        )


def why_idle(state: StepState) -> str:
    """Return why a step of budget 0 has nothing to verify."""
    if not state.requests:
        return "no decode requests"
    if not state.total_scheduled:
        return "no drafts were scheduled"
    return f"a logits chunk of {state.chunk_limit} rows has no room beyond {state.requests} requests"


def uniform_query_len(state: StepState, budget: int) -> int | None:
    """Return the common query length where the host knows that all are equal, else None.

    That is so when nothing is trimmed and all requests scheduled the same number, when nothing is verified
    (every query is the certain token alone), and for a single request.
    """
    requests = state.requests
    if not requests:
        return None
    if budget == 0:
        return 1
    if requests == 1:
        return budget + 1
    least = state.least_scheduled
    return least + 1 if least == state.most_scheduled and budget == least * requests else None


def write_plan(
    state: StepState,
    prospects: Prospects,
    index: int,
    *,
    kind: PlanState,
    reason: str,
    lag: int | None,
) -> Plan:
    """Return the plan that runs candidate ``index``."""
    budgets, executed, expected, seconds = prospects
    budget, tier = budgets.item(index), executed.item(index)
    step, scheduled = state.step, state.total_scheduled
    requests, certain_tokens = state.requests, state.certain_tokens
    uniform = uniform_query_len(state, budget)
    digest = plan_digest(step, budget, scheduled, requests, certain_tokens, tier, uniform, state.kv_tokens)
    # By position, which takes three quarters of the time; the names are the fields'.
    return Plan(
        step,
        kind,
        reason,
        budget,
        scheduled,
        requests,
        certain_tokens,
        certain_tokens + budget,
        tier,
        uniform,
        None if seconds is None else seconds.item(index),
        expected.item(index),
        None if seconds is None else seconds.item(-1),
        expected.item(-1),
        lag,
        digest,
    )
