"""How many: the package's planner on vLLM's batches, made for a host path of some tens of microseconds.

The parts are those of ``VerificationManager.plan``; what differs is that survivals arrive quantised, sizes
are looked up by the shape of the batch, and the plan and its digest are written when the step is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from adaverify_contracts import BudgetCandidates, Plan, PlanState, Policy
from adaverify_verification import CostModel, ManagerOptions
from adaverify_verification.candidates import candidate_budgets, executed_tokens
from adaverify_verification.containment import PluginFault
from adaverify_verification.decision import Decider, Probe
from adaverify_verification.digest import plan_digest
from adaverify_verification.guard import STAY
from adaverify_verification.policies import AchievedRate
from adaverify_verification.quantise import SCORE_MAX
from adaverify_vllm.batch import Batch
from adaverify_vllm.costs import why_unpriced
from adaverify_vllm.foresight import Foresight, serves

# Batches of some hundred shapes come back again and again; a lookup costs a hundredth of the search.
MOST_SHAPES = 512
# A decision made ahead serves while at most one request in this many came or went.
FORESIGHT = 8
# What may have been odd about confidences that still tell what drafts are worth.
HARMLESS = frozenset(("clamped-confidences",))


@dataclass(slots=True)
class Decision:
    """One step's budget and what it was expected to do.

    Attributes:
        step: step number.
        batch: what was planned for.
        budget: B.
        tier: query tokens that execute, padding included.
        state: why it has this size.
        reason: the same in words.
        tokens: expected emitted tokens; full_tokens: of verifying everything.
        seconds: predicted, None when unpriced; full_seconds: of verifying everything.
        lag: steps between the confidences and this step, None when there were none.
        foreseen: whether every request's survivals were known.
        planned: int64 slots that a decision made ahead foresaw, None when it was made for its own batch.
        probe: set when the step explores.
        notes: names of the fallbacks taken.
    """

    step: int
    batch: Batch
    budget: int
    tier: int
    state: PlanState
    reason: str
    tokens: float
    full_tokens: float
    seconds: float | None
    full_seconds: float | None
    lag: int | None
    foreseen: bool
    probe: Probe | None = None
    planned: np.ndarray | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def digest(self) -> int:
        """64 bits of what fixes the step's shape."""
        batch = self.batch
        return plan_digest(
            step=self.step,
            budget=self.budget,
            scheduled=batch.total,
            requests=batch.requests,
            certain_tokens=batch.certain,
            tier=self.tier,
            uniform_query_len=None,
        )

    def plan(self) -> Plan:
        """Return the plan as the trace knows it."""
        batch = self.batch
        return Plan(
            step=self.step,
            state=self.state,
            reason=self.reason,
            budget=self.budget,
            scheduled=batch.total,
            requests=batch.requests,
            certain_tokens=batch.certain,
            tokens=batch.certain + self.budget,
            tier=self.tier,
            uniform_query_len=None,
            predicted_seconds=self.seconds,
            predicted_tokens=self.tokens,
            full_seconds=self.full_seconds,
            full_tokens=self.full_tokens,
            lag=self.lag,
            digest=self.digest,
        )


class BudgetPlanner:
    """Chooses a budget a step; remembers the guard's and the exploration's history.

    Args:
        options: mode, margins and shares.
        policy: the budget policy.
        rows_limit: logits rows that one chunk holds.
        bonus: logits rows of each request that are not drafts.
    """

    def __init__(self, options: ManagerOptions, policy: Policy, *, rows_limit: int, bonus: int) -> None:
        self.options = options
        self.decider = Decider(policy, options)
        self.rate = AchievedRate()
        self.cost = CostModel(None)
        self._tiers = np.zeros(0, dtype=np.int64)
        self._rows_limit, self._bonus = rows_limit, bonus
        self._shapes: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
        self._foresight: Foresight | None = None
        # Of the decision that the foresight was made ready for, None when it was not.
        self._ready: Decision | None = None
        # Expected tokens of the n best drafts of the batch planned last.
        self._sums = np.zeros(1)

    def set_cost(self, cost: CostModel, tiers: tuple[int, ...]) -> None:
        """Plan with these prices and captured sizes from now on."""
        self.cost = cost
        self._tiers = np.array(tiers, dtype=np.int64)
        self._shapes.clear()
        self._ready = self._foresight = None
        if cost.table is not None and tiers and serves(self.decider.policy):
            beyond = [tokens for tokens in cost.table.curves[0].tokens if tokens > tiers[-1]]
            self._foresight = Foresight(self.decider.policy, tiers, beyond)

    def most(self, batch: Batch) -> int:
        """Return the largest budget of a step: its drafts, and what one logits chunk holds."""
        return max(0, min(batch.total, self._rows_limit - batch.requests * self._bonus))

    def plan(
        self, step: int, batch: Batch, scores: np.ndarray, *, lag: int | None, foreseen: bool, odd: str | None
    ) -> Decision:
        """Return the budget of one step.

        Args:
            step: step number.
            batch: the step.
            scores: uint16 [R, K], quantised survivals in the order of the batch; written to.
            lag: their age in steps, None when there are none.
            foreseen: whether all of them are known.
            odd: what was wrong with the confidences, by the name it is counted as.
        """
        budgets, executed = self._sizes(batch.certain, self.most(batch))
        self._sums = _gains(scores, batch.hopeful) / SCORE_MAX
        tokens = batch.emitting + self._sums[budgets]
        full = len(budgets) - 1
        seconds = self._seconds(batch, executed)
        index, state, reason, probe, notes = self._choose(budgets, executed, tokens, seconds, odd)
        return Decision(
            step,
            batch,
            int(budgets[index]),
            int(executed[index]),
            state,
            reason,
            float(tokens[index]),
            float(tokens[full]),
            None if seconds is None else float(seconds[index]),
            None if seconds is None else float(seconds[full]),
            lag,
            foreseen,
            probe,
            None,
            notes,
        )

    def _seconds(self, batch: Batch, executed: np.ndarray) -> np.ndarray | None:
        """Return the price of each size, float64, None when there are no prices."""
        if not self.cost.priced:
            return None
        return self.cost.executed_seconds(executed, 1, 0.0) + self.cost.draft_seconds(batch.requests)

    def _choose(
        self,
        budgets: np.ndarray,
        executed: np.ndarray,
        tokens: np.ndarray,
        seconds: np.ndarray | None,
        odd: str | None,
    ) -> tuple[int, PlanState, str, Probe | None, list[str]]:
        """Return candidate, state, reason, probe and the names of the fallbacks taken."""
        forced = self._forced(budgets, odd)
        if forced is not None or seconds is None:
            index, state, reason, note = forced or self._unpriced(budgets)
            return index, state, reason, None, [note] if note else []
        candidates = BudgetCandidates(budgets, tokens, seconds, self.rate.value)
        try:
            choice = self.decider.choose(
                candidates,
                executed,
                bare_seconds=None,
                tiered=len(self._tiers) > 0,
                guarded=True,
                untried=self._untried,
            )
        except PluginFault as fault:
            reason = f"{fault}: everything is verified"
            return len(budgets) - 1, PlanState.FULL, reason, None, [fault.name]
        return choice.candidate, choice.kind, choice.reason, choice.probe, [odd] if odd else []

    def _untried(self, executed: int) -> bool:
        return self.cost.untried(executed, 1, 0.0)

    def _unpriced(self, budgets: np.ndarray) -> tuple[int, PlanState, str, str]:
        return len(budgets) - 1, PlanState.UNPRICED, why_unpriced(self.cost), "unpriced"

    def _forced(self, budgets: np.ndarray, odd: str | None) -> tuple[int, PlanState, str, str] | None:
        """Return candidate, state, reason and counter where nothing may be chosen, else None."""
        full = len(budgets) - 1
        if self.options.mode == "none":
            return 0, PlanState.IDLE, "mode is none: drafts are not verified", ""
        if not full:
            return 0, PlanState.IDLE, "a logits chunk has no room for drafts, or none are scheduled", ""
        if self.options.mode == "fixed":
            return full, PlanState.FULL, "mode is fixed: everything is verified", ""
        if not self.cost.priced:
            return self._unpriced(budgets)
        if odd == "invalid-confidences":
            return full, PlanState.FULL, "confidences are no numbers: everything is verified", odd
        return None

    def look_ahead(
        self, step: int, batch: Batch, scores: np.ndarray, *, lag: int | None, foreseen: bool, odd: str | None
    ) -> Decision:
        """Return the budget of a step to come, as ``plan`` does, and make ready for another batch."""
        decision = self.plan(step, batch, scores, lag=lag, foreseen=foreseen, odd=odd)
        self._ready = None
        plain = decision.probe is None and batch.hopeful is batch.scheduled
        plain = plain and not set(decision.notes) - HARMLESS
        if self._foresight is not None and self.options.mode == "adaptive" and self.cost.priced and plain:
            guard = self.decider.guard
            needed = guard.margin * (STAY if guard.trimming else 1.0)
            self._foresight.prepare(
                self.cost,
                self._sums,
                emitting=batch.emitting,
                drafting=self.cost.draft_seconds(batch.requests),
                needed=needed,
                rate=self.rate.value,
            )
            self._ready = decision
        return decision

    def adapt(self, decision: Decision, batch: Batch) -> Decision | None:
        """Return a decision made ahead for the batch that came, None when that is to be planned anew.

        Requests come and go by the step. A few more or fewer change what fills the tier and not which tier is
        worth its price; beside another chunk of a prompt the sizes are looked through again; many more or
        fewer are planned anew. Expected tokens teach nothing where the batch is not the one foreseen.
        """
        ahead = decision.batch
        requests, before = len(batch.slots), len(ahead.slots)
        if batch.certain == ahead.certain and batch.total == ahead.total and requests == before:
            decision.batch, decision.planned = batch, ahead.slots
            return decision
        if batch.total == 0 or self.options.mode == "none":
            found = None
        elif batch.others or ahead.others:
            found = self._beside(decision, batch)
        elif abs(requests - before) * FORESIGHT > before:
            found = None
        else:
            found = self._filled(decision, batch)
        if found is None and decision.probe is not None:
            # A probe that is not run has lost nothing.
            probe = decision.probe
            self.decider.learn_from(probe, probe.rate * probe.seconds, probe.seconds)
        return found

    def _filled(self, decision: Decision, batch: Batch) -> Decision:
        """Return the decision with its tier filled by the requests that came."""
        most = self.most(batch)
        everything = decision.budget == self.most(decision.batch)
        # A budget of 0 was chosen with the rest of its tier at hand for nothing: it stays 0.
        fill = 0 if decision.budget == 0 else max(0, decision.tier - batch.certain)
        budget = most if everything else min(most, fill)
        decision.batch, decision.budget, decision.foreseen = batch, budget, False
        decision.tier = self._executed(batch.certain + budget)
        return decision

    def _beside(self, decision: Decision, batch: Batch) -> Decision | None:
        """Return the decision for a batch beside other chunks of prompts than were foreseen."""
        ahead, most = decision.batch, self.most(batch)
        came = batch.total - ahead.total
        if self._foresight is None or self._ready is not decision or batch.hopeful is not batch.scheduled:
            return None
        if most == 0 or abs(came) * FORESIGHT > ahead.total:
            return None
        drafting = self.cost.draft_seconds(batch.requests)
        answer = self._foresight.search(batch.certain, most, batch.emitting, max(0, came), drafting)
        if answer is None:
            return None
        decision.batch, decision.planned = batch, ahead.slots
        decision.budget, decision.tier = answer.budget, answer.executed
        decision.tokens, decision.full_tokens = answer.tokens, answer.full_tokens
        decision.seconds, decision.full_seconds = answer.seconds, answer.full_seconds
        if answer.budget == most:
            decision.state, decision.reason = PlanState.FULL, "trimming gains too little beside this chunk"
        else:
            decision.state, decision.reason = PlanState.TRIMMING, "trimming gains enough beside this chunk"
        return decision

    def _executed(self, tokens: int) -> int:
        return int(executed_tokens(np.array([tokens], dtype=np.int64), self._tiers)[0])

    def everything(self, decision: Decision, reason: str, note: str) -> Decision:
        """Return the decision that verifies everything in place of another, with the reason."""
        most = self.most(decision.batch)
        decision.budget = most
        decision.tier = self._executed(decision.batch.certain + most)
        decision.state, decision.reason, decision.probe = PlanState.FULL, reason, None
        decision.seconds, decision.tokens = decision.full_seconds, decision.full_tokens
        decision.notes.append(note)
        return decision

    def follow(self, step: int, batch: Batch, budget: int, tier: int) -> Decision:
        """Return rank 0's budget as this rank's decision."""
        emitting = float(batch.emitting)
        return Decision(
            step,
            batch,
            budget,
            tier,
            PlanState.FULL if budget == batch.total else PlanState.TRIMMING,
            "applied from rank 0",
            emitting,
            emitting,
            None,
            None,
            None,
            False,
        )

    def _sizes(self, certain: int, most: int) -> tuple[np.ndarray, np.ndarray]:
        found = self._shapes.get((certain, most))
        if found is None:
            if len(self._shapes) >= MOST_SHAPES:
                self._shapes.clear()
            budgets = candidate_budgets(certain, most, self._tiers)
            executed = executed_tokens(certain + budgets, self._tiers)
            # A policy that writes into what it is shown would change every later plan of this shape.
            budgets.setflags(write=False)
            executed.setflags(write=False)
            found = self._shapes[certain, most] = (budgets, executed)
        return found


def _gains(scores: np.ndarray, hopeful: np.ndarray) -> np.ndarray:
    """Return the sums of the n largest survivals of all hopeful drafts, int64 [R x K + 1], n = 0 first."""
    width = scores.shape[1]
    if len(hopeful) and int(hopeful.min()) < width:
        # A draft that cannot be accepted is worth nothing, and so sorts last.
        scores[np.arange(width) >= hopeful[:, None]] = 0
    offered = scores.ravel()
    # A stable sort of 16-bit integers is a radix sort.
    offered.sort(kind="stable")
    sums = np.zeros(len(offered) + 1, dtype=np.int64)
    np.cumsum(offered[::-1], out=sums[1:])
    return sums
