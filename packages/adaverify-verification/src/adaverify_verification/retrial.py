"""Prices held against the machine: the manager's methods that let served steps contradict a table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adaverify_contracts import Limits, PlanState, StepState
from adaverify_verification.candidates import raise_to_tier_end
from adaverify_verification.cost_model import CostModel
from adaverify_verification.decision import UNTRIED, Choice, Decider
from adaverify_verification.law import LawRule
from adaverify_verification.options import ManagerOptions
from adaverify_verification.parts import require_batch
from adaverify_verification.planner import Prospects, context_of, survey
from adaverify_verification.tiers import Tiers


class RetriedPrices:
    """The manager's methods for prices that no step has confirmed, and for drafting, which may be skipped."""

    limits: Limits
    options: ManagerOptions
    cost: CostModel
    _decider: Decider
    _law: LawRule

    def _untried(self, state: StepState, executed: int) -> bool:
        return self.options.online and self.cost.untried(executed, state.requests, context_of(state))

    def _retries(self, state: StepState) -> bool:
        """Return whether this step may hold a flat table against the machine."""
        return self.cost.flat and self._law.guarded(state)

    def _retried(
        self, state: StepState, quantised: np.ndarray, tiers: Tiers, unpriced: Choice
    ) -> tuple[Prospects, Choice]:
        """Return half of everything where exploration affords it: served sizes alone tell prices apart."""
        everything = state.max_budget
        half = raise_to_tier_end(everything // 2, state.certain_tokens, everything, tiers.counts)
        prospects = survey(state, quantised, self.cost, tiers, budgets=np.array([half, everything]))
        part, whole = prospects.tokens.tolist()
        lower, upper = prospects.executed.tolist()
        if lower < upper and self._untried(state, lower) and self._decider.tries(part, whole):
            return prospects, Choice(0, PlanState.TRIMMING, f"{UNTRIED}; {unpriced.reason}")
        return prospects, replace(unpriced, index=1)

    def draft_next(self, requests: int, kv_tokens: int) -> tuple[bool, str]:
        """Return whether the next step should draft at all, and why; for engines that can skip drafting.

        Args:
            requests: decode requests of the next step.
            kv_tokens: sum of their KV lengths.

        Raises:
            PlanError: they are no counts, or more requests than the limits hold.
        """
        require_batch(self.limits, requests, kv_tokens)
        if self.options.mode != "adaptive":
            return self.options.mode == "fixed", f"mode is {self.options.mode}"
        draft = self.cost.draft_seconds(requests)
        if not self.cost.priced or draft <= 0 or not requests:
            return self._decider.arm.decide(0.0, 0.0)
        bare = float(self.cost.seconds(requests, requests, kv_tokens / requests))
        return self._decider.arm.decide(draft, bare)
