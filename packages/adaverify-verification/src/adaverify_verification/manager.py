"""The verification manager: publish, plan, assign, observe."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import torch

from adaverify_contracts import (
    Limits,
    Plan,
    PlanError,
    PlanState,
    PolicyDescriptor,
    Seen,
    SignalDescriptor,
    StepOutcome,
    StepRecord,
    StepState,
)
from adaverify_verification import containment
from adaverify_verification.arrived import ArrivedConfidences
from adaverify_verification.assignment import Assigner, Assignment
from adaverify_verification.captured import CapturedSteps
from adaverify_verification.cost_model import CostModel
from adaverify_verification.decision import Choice, Decider
from adaverify_verification.forecast import Forecast
from adaverify_verification.lagged import LaggedReader
from adaverify_verification.law import LawRule, Pins
from adaverify_verification.ledger import Entry, Ledger
from adaverify_verification.live import LiveConfidences
from adaverify_verification.options import ManagerOptions
from adaverify_verification.outcomes import misfits_of, remarks_on, require_kinds, verification_seconds
from adaverify_verification.parts import require_note, require_open, require_parts, start_warnings
from adaverify_verification.planner import (
    Prospects,
    check_fits,
    context_of,
    only,
    survey,
    why_idle,
    write_plan,
)
from adaverify_verification.policies import AchievedRate
from adaverify_verification.ranking import Ranking
from adaverify_verification.ranks import AgreedSteps
from adaverify_verification.records import write_record
from adaverify_verification.relay import Relay, make_relay
from adaverify_verification.retrial import RetriedPrices
from adaverify_verification.tiers import Tiers

_LOG = logging.getLogger(__name__)


class VerificationManager(ArrivedConfidences, CapturedSteps, AgreedSteps, RetriedPrices):
    """Decides each step how many draft tokens to verify and which, and learns from what happened.

    ``publish``, ``plan`` and ``assign`` are the decode path: they read no device value, wait for nothing and
    call no hook. ``observe`` is off it.

    Args:
        limits: largest shapes.
        device: run device.
        signal: the confidence source.
        policy: the budget policy.
        cost: prices of steps; its tiers are set to ``tiers``.
        tiers: captured token counts, rising; empty in eager mode.
        options: how to behave.
        drafter_seen: what the drafter's score for position k has seen.
        drafter_deterministic: drafts are a function of the prefix; this step's scores then count as history.
        assign_backend: ``torch`` or ``triton``.
        relay: carries confidences to the host; one of the default depth when None.

    Raises:
        DescriptorError: a part has the wrong type.
        PlanError: tiers are not rising positive counts.
        LosslessError: the pair could change what sampled requests emit and ``options.lossless`` is
        ``refuse``.
    """

    def __init__(
        self,
        limits: Limits,
        device: torch.device | str,
        *,
        signal: SignalDescriptor,
        policy: PolicyDescriptor,
        cost: CostModel,
        tiers: tuple[int, ...],
        options: ManagerOptions,
        drafter_seen: Seen,
        drafter_deterministic: bool,
        assign_backend: str = "torch",
        relay: Relay | None = None,
    ) -> None:
        require_parts(
            assign_backend,
            relay,
            limits=limits,
            signal=signal,
            policy=policy,
            cost=cost,
            options=options,
            drafter_seen=drafter_seen,
            drafter_deterministic=drafter_deterministic,
        )
        self._closed = False
        self.limits = limits
        self.options = options
        self.cost = cost
        self.signal = signal.factory(limits, torch.device(device))
        self._counts: Counter[str] = Counter()
        self._decider = Decider(policy.factory(), options)
        self._rate = AchievedRate()
        self._forecast = Forecast()
        self._ledger = Ledger()
        self._reader = LaggedReader(limits.draft_tokens)
        self._relay = make_relay(limits, torch.device(device)) if relay is None else relay
        self._live = LiveConfidences(limits, torch.device(device), self.signal, self._relay)
        self._assigner = Assigner(limits, torch.device(device), backend=assign_backend)
        self._budget = torch.zeros(1, dtype=torch.int32, device=device)
        self._law = LawRule(
            signal,
            policy,
            drafter_seen=drafter_seen,
            drafter_deterministic=drafter_deterministic,
            refuse=options.lossless == "refuse",
        )
        self._pins = None if self._law.verdict.allowed else Pins(limits, torch.device(device))
        self.set_tiers(tiers)
        for warning in start_warnings(options, limits, cost, self._law):
            _LOG.warning("%s", warning)

    @property
    def mode(self) -> str:
        """``none``, ``fixed`` or ``adaptive``."""
        return self.options.mode

    @property
    def counters(self) -> Mapping[str, int]:
        """Every fallback and invalid event by name, counted since the start."""
        dropped = {"relay-dropped": self._relay.dropped} if self._relay.dropped else {}
        return MappingProxyType({**self._counts, **dropped})

    @property
    def buffers(self) -> Mapping[str, torch.Tensor]:
        """Static tensors of the assignment by name; addresses never change, graphs read them."""
        return self._assigner.buffers

    @property
    def margin(self) -> float:
        """The margin over full verification in force, widened by disagreement."""
        return self._decider.guard.margin

    def publish(self, step: int, slots: np.ndarray, generations: np.ndarray, scores: torch.Tensor) -> None:
        """Take the raw scores of the drafts that ``step`` verifies; enqueue only.

        Args:
            step: the step that verifies these drafts.
            slots: int64 [R], request slots in row order.
            generations: int64 [R], their generations.
            scores: float32 [R, K] on the run device, 0 where undrafted; NaN ranks last, counted in observe.

        Raises:
            LayoutError: the shapes do not fit the limits.
            ClosedError: the manager is closed.
        """
        self._require_open()
        self._live.publish(step, slots, generations, scores)

    def plan(self, state: StepState) -> Plan:
        """Return how many draft tokens this step verifies, and why; host work only.

        Raises:
            PlanError: the state does not fit the limits.
            ClosedError: the manager is closed.
        """
        if self._closed:
            self._require_open()
        check_fits(state, self.limits)
        entry = Entry(state, creditable=state.other_tokens == 0 or self.options.mixed_tiers)
        self._ledger.open(state.step, entry)
        whole = None if self._pins is None else self._pin(state)
        if (fault := self._live.fault(state.step)) is not None:
            # Counted whatever is planned: without prices, too, the signal is what has to be mended.
            self._note(entry, fault.name)
        if self.options.mode == "none":
            return self._bare(state, "mode is none: drafts are not verified")
        if state.max_budget == 0:
            return self._bare(state, why_idle(state))
        ranking, lag = self._survivals(state, entry)
        # It has drafts, so no captured step without them serves it; what is credited is what is tiered.
        tiers = self._tiers if entry.creditable else self._untiered
        choice = self._forced(state, entry, whole, fault)
        if choice is None:
            guarded = self._law.guarded(state)
            budgets = None if guarded else self._law.budgets(state)
            prospects = survey(state, ranking, self.cost, tiers, budgets=budgets, whole=whole)
            try:
                choice = self._choose(state, prospects, tiers, guarded=guarded, plain=whole is None)
            except containment.PluginFault as error:
                self._note(entry, error.name)
                last = len(prospects.budgets) - 1
                choice = Choice(last, PlanState.FULL, f"{error}: everything is verified")
        elif choice.kind is PlanState.UNPRICED and whole is None and self._retries(state):
            prospects, choice = self._retried(state, ranking, tiers, choice)
        else:
            prospects = survey(state, ranking, self.cost, tiers, budgets=only(state.max_budget))
        entry.probe = choice.probe
        entry.foreseen &= choice.kind is not PlanState.WARMING
        return write_plan(state, prospects, choice.candidate, kind=choice.kind, reason=choice.reason, lag=lag)

    def _choose(
        self, state: StepState, prospects: Prospects, tiers: Tiers, *, guarded: bool, plain: bool
    ) -> Choice:
        choice = self._decider.choose(
            prospects.candidates(self._rate.value),
            prospects.executed,
            bare_seconds=self._bare_seconds(state, prospects),
            tiered=bool(tiers),
            guarded=guarded,
            untried=lambda executed: self._untried(state, executed),
            plain=plain,
        )
        if not guarded:
            # The tier was chosen at the frontier; its padding is filled by rank (maths section 5.2).
            executed = prospects.executed
            index = int(np.flatnonzero(executed == executed[choice.candidate])[-1])
            everything = index == len(prospects.budgets) - 1
            return choice._replace(candidate=index, kind=PlanState.FULL if everything else choice.kind)
        if plain:
            return choice
        why = self._law.verdict.reason
        return choice._replace(reason=f"sampled requests are verified whole: {why}; others: {choice.reason}")

    def _pin(self, state: StepState) -> np.ndarray | None:
        """Return bool [R], the requests that must be verified whole, and let them rank first."""
        whole = self._law.whole(state)
        if self._pins is not None:
            self._pins.load(whole)
        return whole

    def _forced(
        self, state: StepState, entry: Entry, whole: np.ndarray | None, fault: containment.PluginFault | None
    ) -> Choice | None:
        """Return full verification, with the reason, where nothing may be chosen; else None.

        A ``fault`` of the signal has been counted; one of its readiness is counted here.
        """
        if self.options.mode == "fixed":
            return Choice(0, PlanState.FULL, "mode is fixed: everything is verified")
        ready: tuple[bool, str] | None = None
        if fault is None:
            try:
                ready = containment.readiness(self.signal)
            except containment.PluginFault as error:
                fault = error
                self._note(entry, fault.name)
        if whole is not None:
            self._note(entry, "lossless-downgrade")
            if int(state.scheduled[whole].sum()) >= state.max_budget:
                return Choice(0, PlanState.FULL, f"sampled requests: {self._law.verdict.reason}")
        if not self.cost.priced:
            self._note(entry, "unpriced")
            if fault is None:
                return Choice(0, PlanState.UNPRICED, self.cost.reason)
        if "invalid-confidences" in entry.notes:
            return Choice(0, PlanState.FULL, "confidences are no numbers: everything is verified")
        if fault is not None or ready is None:
            return Choice(0, PlanState.FULL, f"{fault}: everything is verified")
        warming = None if ready[0] else self._decider.warming(ready[1])
        return None if warming is None else Choice(0, PlanState.WARMING, warming)

    def _bare(self, state: StepState, reason: str) -> Plan:
        """Return the plan that verifies nothing."""
        nothing = Ranking(np.zeros((state.requests, self.limits.draft_tokens), dtype=np.int32))
        tiers, bare = self._tiers_for(state), self._runs_bare(state)
        prospects = survey(state, nothing, self.cost, tiers, budgets=only(0), bare=bare)
        return write_plan(state, prospects, 0, kind=PlanState.IDLE, reason=reason, lag=None)

    def assign(
        self, plan: Plan, scheduled: torch.Tensor, kv_lens: torch.Tensor, padded_tokens: int
    ) -> Assignment:
        """Return which drafts are verified: the budget spent on this step's own confidences, on the device.

        Args:
            plan: this step's plan.
            scheduled: int32 [R padded] on the device, -1 for padding requests.
            kv_lens: int32 [R padded] on the device.
            padded_tokens: query tokens to describe, padding included.

        Raises:
            PlanError: the plan is not one this manager made or applied lately, or older than an executed one.
            LayoutError: the tensors do not fit the limits.
            ClosedError: the manager is closed.
        """
        self._require_open()
        entry = self._ledger.get(plan.step) if isinstance(plan, Plan) else None
        if entry is None:
            raise PlanError(
                "the plan to assign is not open",
                arrived=getattr(plan, "step", plan),
                allowed="a step that plan() or apply() returned and observe() has not closed",
                remedy="plan, assign and observe each step once, in this order",
            )
        self._ledger.execute(plan.step)
        confidences, own = self._live.ranking(entry.state, scheduled.shape[0])
        if not own and 0 < plan.budget < plan.scheduled:
            self._note(entry, "unranked-requests")
        self._budget.fill_(plan.budget)
        self._pin(entry.state)
        if self._pins is not None:
            confidences = self._pins.apply(confidences)
        return self._assigner.assign(confidences, scheduled, kv_lens, self._budget, padded_tokens)

    def observe(self, outcome: StepOutcome, plan: Plan, strategy: str, *, rows: bool = False) -> StepRecord:
        """Learn from a finished step and return its record, with ``rows`` where asked. Off the decode path.

        A measurement is credited only to the plan that caused it: one of another step or of other requests,
        or that executed another size than planned, teaches nothing at all, and is counted.

        Raises:
            PlanError: ``outcome`` or ``plan`` is no such value; nothing is learnt or counted then.
            ClosedError: the manager is closed, and the step was not under way when it was.
        """
        require_kinds(outcome, plan)
        entry = self._ledger.close(outcome.step)
        if entry is None:
            self._require_open()
        notes = [] if entry is None else entry.notes
        misfits = misfits_of(outcome, plan, None if entry is None else entry.state)
        named = [*misfits, *remarks_on(outcome)]
        if not misfits:
            named += containment.learn(self.signal, outcome)
        if named:
            self._counts.update(named)
            notes.extend(named)
        if entry is not None and not misfits:
            self._credit(entry, outcome, plan)
            self._rate.add(outcome.emitted, outcome.seconds)
        return write_record(outcome, plan, strategy, notes=tuple(notes), rows=rows)

    def _credit(self, entry: Entry, outcome: StepOutcome, plan: Plan) -> None:
        """Teach the guard, exploration and the cost model what an executed plan really did."""
        if entry.probe is not None and entry.creditable:  # Beside a prompt it stays charged as planned.
            self._decider.learn_from(entry.probe, outcome.emitted, outcome.seconds)
        if plan.scheduled:
            self._decider.guard.observe(
                trimmed=plan.budget < entry.state.max_budget,
                predicted_seconds=plan.predicted_seconds if entry.creditable else None,
                seconds=outcome.seconds,
                predicted_tokens=plan.predicted_tokens if entry.foreseen else 0.0,
                tokens=outcome.emitted,
            )
        if self.options.online and entry.creditable and outcome.seconds is not None and plan.requests:
            strayed, state = self.cost.strayed, entry.state
            times = verification_seconds(outcome, outcome.seconds, plan, self.cost), outcome.seconds
            bare, host = self._runs_bare(state), outcome.host_seconds
            self.cost.refresh(plan.tier, plan.requests, context_of(state), *times, bare=bare, host=host)
            if self.cost.strayed != strayed:
                self._note(entry, "table-agrees-again" if strayed else "table-left-bounds")
                change = "planned again" if strayed else "full"
                _LOG.warning("mode %s: budgets are %s: %s", self.mode, change, self.cost.reason)

    def note(self, step: int, name: str) -> None:
        """Count a fallback of the caller's own by name, a drafter's for instance, and record it.

        Raises:
            PlanError: the step is no step number, or the name is none.
        """
        require_note(step, name)
        self._note(self._ledger.get(step), name)

    def close(self) -> None:
        """Release the relay. Outcomes of steps under way are still taken, and nothing else."""
        self._closed = True
        self._relay.close()

    def _require_open(self) -> None:
        require_open(self._closed)

    def _note(self, entry: Entry | None, name: str) -> None:
        self._counts[name] += 1
        if entry is not None:
            entry.notes.append(name)
