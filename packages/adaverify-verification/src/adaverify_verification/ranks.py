"""One decision for all ranks: the manager's methods that hand a plan over and settle a disagreement."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from adaverify_contracts import Limits, Plan, PlanState, StepState
from adaverify_verification.cost_model import CostModel
from adaverify_verification.digest import agree, apply_plan, export_plan, require_digests
from adaverify_verification.lagged import optimistic
from adaverify_verification.ledger import Entry, Ledger
from adaverify_verification.planner import check_fits, only, survey, write_plan
from adaverify_verification.tiers import Tiers


class AgreedSteps:
    """The manager's open plans, and its methods for ranks that run the same steps."""

    limits: Limits
    cost: CostModel
    _ledger: Ledger
    _note: Callable[[Entry | None, str], None]
    _tiers_for: Callable[[StepState], Tiers]
    _pin: Callable[[StepState], np.ndarray | None]
    _require_open: Callable[[], None]

    @property
    def ledger(self) -> Ledger:
        """The open plans and their order, for whoever executes them."""
        return self._ledger

    def export(self, plan: Plan) -> tuple[int, ...]:
        """Return the plan as integers, for rank 0 to broadcast.

        Raises:
            PlanError: ``plan`` is no ``Plan``.
        """
        return export_plan(plan)

    def apply(self, state: StepState, integers: Sequence[int]) -> Plan:
        """Return and open rank 0's plan in place of one of our own.

        Raises:
            PlanError: the integers are no plan or belong to another step or batch.
            ClosedError: the manager is closed.
        """
        self._require_open()
        check_fits(state, self.limits)
        plan = apply_plan(state, integers)
        self._ledger.open(state.step, Entry(state, creditable=state.other_tokens == 0))
        self._pin(state)
        return plan

    def agree(self, state: StepState, plan: Plan, digests: Sequence[int]) -> Plan:
        """Return ``plan`` when all ranks' digests are equal, else a counted plan that verifies everything.

        Raises:
            PlanError: ``plan`` is no ``Plan``, ``state`` no fitting ``StepState`` or ``digests`` no integers.
            ClosedError: the manager is closed.
        """
        self._require_open()
        check_fits(state, self.limits)
        require_digests(plan, digests)
        if agree((*digests, plan.digest)):
            return plan
        entry = Entry(state, creditable=state.other_tokens == 0)
        self._note(entry, "ranks-disagree")
        self._ledger.open(state.step, entry)
        ranking, tiers = optimistic(state, self.limits.draft_tokens), self._tiers_for(state)
        prospects = survey(state, ranking, self.cost, tiers, budgets=only(state.max_budget))
        reason = "ranks planned differently: everything is verified"
        return write_plan(state, prospects, 0, kind=PlanState.FULL, reason=reason, lag=None)
