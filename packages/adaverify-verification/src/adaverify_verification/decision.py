"""How many: policy, guard and exploration settled into one choice a step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from adaverify_contracts import BudgetCandidates, PlanState, Policy
from adaverify_verification import containment
from adaverify_verification.drafting import DraftArm
from adaverify_verification.exploration import Exploration
from adaverify_verification.guard import Guard
from adaverify_verification.options import ManagerOptions
from adaverify_verification.policies import GainPolicy, RatioPolicy, best, ratio_gains

Untried = Callable[[int], bool]
"""Whether a size that executes has hardly been served, so that its price is the table's word alone."""

# A candidate whose price differs less from everything's than this cannot teach anything about prices.
SAME_PRICE = 0.01
# Probes that keep losing are this many steps apart in the end. Each loses about 5 % of a step, and without
# spacing they lose the whole share, 1 %, for ever; what changes is found within a second of 30 ms steps.
SPACING = 32
UNTRIED = "exploring a size whose price is the table's word alone"


class Probe(NamedTuple):
    """One explored step: what it was charged, in steps, and what it is compared with.

    Attributes:
        charge: what exploration paid.
        seconds: predicted seconds of the step it replaced.
        rate: predicted tokens per second of the step it replaced.
        of_drafting: whether drafting itself is probed; the step it replaced is one of plain decoding then.
    """

    charge: float
    seconds: float
    rate: float
    of_drafting: bool = False


class Choice(NamedTuple):
    """The index of a candidate, with the state and the words that go into the plan."""

    candidate: int
    kind: PlanState
    reason: str
    probe: Probe | None = None


class Decider:
    """Chooses one candidate a step; all that it remembers is history.

    Args:
        policy: the budget policy.
        options: margins, shares and the bound on warming up.
    """

    def __init__(self, policy: Policy, options: ManagerOptions) -> None:
        self.policy = policy
        # Resolved once: an isinstance check against a protocol takes 20 us, a tenth of the plan.
        self._gains = policy.gains if isinstance(policy, GainPolicy) else ratio_gains
        # Nobody else's code, so there is nothing to contain.
        self._is_ratio = type(policy) is RatioPolicy
        self.guard = Guard(options.margin, options.hysteresis)
        self.arm = DraftArm(options.margin, options.explore_share)
        self._exploration = Exploration(options.explore_share, SPACING)
        self._warmup_steps = options.warmup_steps
        self._warmed = 0

    def warming(self, why: str) -> str | None:
        """Count a step whose signal is not ready; return why it verifies everything, None once warm.

        Bounded: labels that never come (every draft accepted, or none) must not hold trimming off for ever.
        """
        if self._warmed >= self._warmup_steps:
            return None
        self._warmed += 1
        return f"warming up, step {self._warmed} of at most {self._warmup_steps}: {why}"

    def choose(
        self,
        candidates: BudgetCandidates,
        executed: np.ndarray,
        *,
        bare_seconds: float | None,
        tiered: bool,
        guarded: bool,
        untried: Untried,
        plain: bool = True,
    ) -> Choice:
        """Return the choice for one priced step with drafts.

        Args:
            candidates: the first is the smallest budget, the last full verification.
            executed: int64 [C], query tokens that execute.
            bare_seconds: seconds of this step without any drafting, None where that has no price of its own.
            tiered: the sizes are captured tiers.
            guarded: False for live values, past whose frontier nothing but the policy's own rule may look.
            untried: of the cost model.
            plain: the first candidate verifies nothing; False judges nothing about drafting at all.

        Raises:
            PluginFault: the policy raised or answered nonsense.
        """
        full = len(candidates.budgets) - 1
        bare_rate = candidates.tokens.item(0) / bare_seconds if plain and bare_seconds else None
        charge = self.arm.take_probe() if bare_rate else None
        if bare_seconds and bare_rate and charge is not None:
            probe = Probe(charge, bare_seconds, bare_rate, of_drafting=True)
            return Choice(full, PlanState.FULL, "exploring whether drafting pays again", probe)
        if not guarded:
            index = containment.choose(self.policy, candidates)
            kind = PlanState.FULL if index == full else PlanState.TRIMMING
            choice = Choice(index, kind, "frontier rule on live confidences, unguarded")
        elif candidates.seconds.item(0) >= candidates.seconds.item(full):
            choice = Choice(full, PlanState.FULL, "every reachable budget costs the same")
            choice = self._trial(candidates, executed, untried) or choice
        else:
            choice = self._guarded(candidates, executed, untried, tiered=tiered)
        if bare_rate is not None:
            chosen = choice.candidate
            self.arm.note(candidates.tokens.item(chosen) / candidates.seconds.item(chosen), bare_rate)
        return choice

    def _guarded(
        self, candidates: BudgetCandidates, executed: np.ndarray, untried: Untried, *, tiered: bool
    ) -> Choice:
        full = len(candidates.budgets) - 1
        index, gains = self._weighed(candidates)
        kept, reason = self.guard.settle(gains, index, executed, tiered=tiered)
        if kept == full:
            # One of the two at most: each earns the step's share of exploration.
            if gains[index] > 0 and candidates.seconds[index] < (1.0 - SAME_PRICE) * candidates.seconds[full]:
                found = self._near_miss(candidates, index, reason)
            else:
                found = self._trial(candidates, executed, untried)
            return found or Choice(full, PlanState.FULL, reason)
        probe = self._probe_full(candidates, kept)
        if probe is None:
            return Choice(kept, PlanState.TRIMMING, reason)
        return Choice(full, PlanState.FULL, f"exploring trimmed positions; {reason}", probe)

    def _weighed(self, candidates: BudgetCandidates) -> tuple[int, np.ndarray]:
        """Return the policy's choice and its gains, one finite number a candidate."""
        if self._is_ratio:
            gains = ratio_gains(candidates)
            index = best(gains)
            # Tokens and prices are not negative: where any gain is not finite, the largest is not.
            if math.isfinite(gains.item(index)):
                return index, gains
        index = containment.choose(self.policy, candidates)
        return index, containment.weigh(self._gains, candidates)

    def _probe_full(self, candidates: BudgetCandidates, kept: int) -> Probe | None:
        """Return the probe of everything that a trimmed step affords."""
        tokens, seconds = candidates.tokens, candidates.seconds
        mine, time = tokens.item(kept), seconds.item(kept)
        # Time that verifying everything loses, less what its tokens are worth at the plan's own rate.
        worth = tokens.item(-1) * time / mine if mine > 0 else 0.0
        charge = self._exploration.due((seconds.item(-1) - worth) / time)
        return None if charge is None else Probe(charge, time, mine / time)

    def _near_miss(self, candidates: BudgetCandidates, index: int, reason: str) -> Choice | None:
        """Return the policy's choice, explored, where it promises a gain that the margin swallows."""
        probe = self._afford(candidates, len(candidates.budgets) - 1, 0.0)
        words = f"exploring a size that may pay; {reason}"
        return None if probe is None else Choice(index, PlanState.TRIMMING, words, probe)

    def _trial(self, candidates: BudgetCandidates, executed: np.ndarray, untried: Untried) -> Choice | None:
        """Return half of everything, explored, while the table alone says that trimming never pays.

        A table that is wrong about that would otherwise never be contradicted: nothing else serves a smaller
        size. A few visits settle it.
        """
        full = len(candidates.budgets) - 1
        half = int(candidates.budgets.searchsorted(int(candidates.budgets[full]) // 2))
        if half == full or executed[half] >= executed[full] or not untried(int(executed[half])):
            return None
        tokens, seconds = candidates.tokens, candidates.seconds
        share = float(tokens[half] / tokens[full]) if tokens[full] > 0 else 1.0
        probe = self._afford(candidates, full, float(seconds[half] / seconds[full]) - share)
        return None if probe is None else Choice(half, PlanState.TRIMMING, UNTRIED, probe)

    def _afford(self, candidates: BudgetCandidates, replaced: int, loss: float) -> Probe | None:
        """Return a probe in place of candidate ``replaced`` where exploration has earned its loss."""
        charge = self._exploration.due(loss)
        return None if charge is None else _probe_of(candidates, replaced, charge)

    def tries(self, part: float, whole: float) -> bool:
        """Return whether a step may verify ``part`` of ``whole`` expected tokens at an unknown price."""
        return self._exploration.due(1.0 - part / whole if whole > 0 else 0.0) is not None

    def learn_from(self, probe: Probe, emitted: float, seconds: float | None) -> None:
        """Charge a probe what it really lost; one that was not timed stays charged as planned."""
        if not seconds or seconds <= 0:
            return
        if probe.rate <= 0:
            return
        lost = (seconds - emitted / probe.rate) / probe.seconds
        if probe.of_drafting:
            self.arm.learn(probe.charge, emitted / seconds, probe.rate, lost)
        else:
            self._exploration.settle(probe.charge, lost)


def _probe_of(candidates: BudgetCandidates, replaced: int, charge: float) -> Probe:
    seconds = float(candidates.seconds[replaced])
    return Probe(charge, seconds, float(candidates.tokens[replaced]) / seconds)
