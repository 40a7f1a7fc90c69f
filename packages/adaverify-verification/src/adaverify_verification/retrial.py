"""Prices held against the machine: the manager's methods that let served steps contradict a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adaverify_contracts import Limits, PlanState, StepState
from adaverify_verification.candidates import raise_to_tier_end
from adaverify_verification.cost_model import CostModel
from adaverify_verification.decision import UNTRIED, Choice, Decider
from adaverify_verification.law import LawRule
from adaverify_verification.options import ManagerOptions
from adaverify_verification.parts import require_batch, tier_counts
from adaverify_verification.planner import Prospects, context_of, only, survey
from adaverify_verification.ranking import Ranking
from adaverify_verification.tiers import Tiers


class RetriedPrices:
    """The manager's methods for prices that no step has confirmed, for tiers, and for skipping to draft."""

    limits: Limits
    options: ManagerOptions
    cost: CostModel
    _decider: Decider
    _law: LawRule
    _tiers: Tiers
    _bare_tiers: Tiers
    _untiered: Tiers

    def _untried(self, state: StepState, executed: int) -> bool:
        return self.options.online and self.cost.untried(executed, state.requests, context_of(state))

    def _retries(self, state: StepState) -> bool:
        """Return whether this step may hold a flat table against the machine."""
        return self.cost.flat and self._law.guarded(state)

    def _retried(
        self, state: StepState, ranking: Ranking, tiers: Tiers, unpriced: Choice
    ) -> tuple[Prospects, Choice]:
        """Return half of everything where exploration affords it: served sizes alone tell prices apart."""
        everything = state.max_budget
        half = raise_to_tier_end(everything // 2, state.certain_tokens, everything, tiers.counts)
        if half == everything:
            return survey(state, ranking, self.cost, tiers, budgets=only(everything)), unpriced
        prospects = survey(state, ranking, self.cost, tiers, budgets=np.array([half, everything]))
        part, whole = prospects.tokens.tolist()
        lower, upper = prospects.executed.tolist()
        if lower < upper and self._untried(state, lower) and self._decider.tries(part, whole):
            return prospects, Choice(0, PlanState.TRIMMING, f"{UNTRIED}; {unpriced.reason}")
        return prospects, unpriced._replace(candidate=1)

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
        context = kv_tokens / requests if requests else 0.0
        if not self.cost.priced or not requests:
            return self._decider.arm.decide(0.0, 0.0)
        step, draft = float(self.cost.seconds(requests, requests, context)), self.cost.draft_seconds(requests)
        bare = step if draft > 0 else self.cost.bare_seconds(requests, context)
        if bare is None:
            return self._decider.arm.decide(0.0, 0.0)
        # Where drafting has no price of its own, steps with and without it are priced whole.
        return self._decider.arm.decide(draft if draft > 0 else step - bare, bare)

    def _bare_seconds(self, state: StepState, prospects: Prospects) -> float | None:
        """Return what a step that drafts would take without drafting, None where that has no price."""
        if not self.cost.prices_bare:
            return None
        draft = self.cost.draft_seconds(state.requests)
        if draft > 0 and prospects.seconds is not None:
            return float(prospects.seconds[0]) - draft
        # Steps with prefill are not captured: what captured ones cost says nothing of them.
        return None if state.other_tokens else self.cost.bare_seconds(state.requests, context_of(state))

    def set_tiers(self, tiers: Sequence[int], bare: Sequence[int] = ()) -> None:
        """Plan for these token counts from now on, for instance without one that failed to capture.

        Args:
            tiers: of steps that draft, rising: captured sizes, or those from which a device computes more
                rows; none where every count executes as itself.
            bare: of captured steps that draft nothing, one token a request, rising; none without such steps.

        Raises:
            PlanError: they are not rising positive counts.
        """
        counts, free = tier_counts(tiers), tier_counts(bare)
        self._tiers, self._bare_tiers, self._untiered = Tiers(counts), Tiers(free), Tiers()
        self.cost.set_tiers(tuple(counts), tuple(free))

    def _runs_bare(self, state: StepState) -> bool:
        """Return whether this step is one of the captured ones that draft nothing."""
        return not state.total_scheduled and not state.other_tokens and bool(self._bare_tiers)

    def _tiers_for(self, state: StepState) -> Tiers:
        """Return the tiers this batch is padded to: none for one that holds a prefill chunk, unless asked."""
        if self._runs_bare(state):
            return self._bare_tiers
        return self._tiers if state.other_tokens == 0 or self.options.mixed_tiers else self._untiered
