"""What became of a step: the record of the trace, the counters, and what the planner learns."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from adaverify_contracts import StepRecord
from adaverify_vllm.costs import why_unpriced
from adaverify_vllm.history import Arrival
from adaverify_vllm.planning import BudgetPlanner, Decision

LOG = logging.getLogger("vllm.adaverify")

# Steps that wait for their outcome: the relay's ring and the host's lead are shorter.
OPEN = 32
# A line of totals this often, at most.
EVERY = 2000

Observer = Callable[[StepRecord], None]


@dataclass(frozen=True, slots=True)
class Found:
    """What a step did: drafts verified and accepted, tokens emitted, seconds or None where not timed."""

    verified: int
    accepted: int
    emitted: int
    seconds: float | None


class Outcomes:
    """Joins decisions with what arrived of their steps.

    Args:
        planner: learns from outcomes.
        seconds: returns the time of a step, None when it was not measured.
        observer: called with each record, off the decode path; None records nothing.
        learns: False where nothing that differs between ranks may change a plan.
    """

    def __init__(
        self,
        planner: BudgetPlanner,
        seconds: Callable[[int], float | None],
        *,
        slots: int,
        observer: Observer | None,
        learns: bool,
        strategy: str,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self._planner, self._seconds, self._observer = planner, seconds, observer
        self._learns, self._strategy = learns, strategy
        self._open: dict[int, Decision] = {}
        # Of the request that arrivals last showed in each slot, and of the one that came into it last.
        self._lengths = np.zeros(slots, dtype=np.int64)
        self._generations = np.zeros(slots, dtype=np.int64)
        self._first_lengths = np.zeros(slots, dtype=np.int64)
        self._newest = np.zeros(slots, dtype=np.int64)

    def begin(self, slot: int, generation: int, length: int) -> None:
        """Note a new request and its length; arrivals may still be about its predecessor."""
        self._first_lengths[slot], self._newest[slot] = length, generation

    def open(self, decision: Decision) -> None:
        """Remember a decision until its outcome arrives."""
        self._open[decision.step] = decision
        if len(self._open) > OPEN:
            self._open.pop(min(self._open))
            self.counters["outcome-missed"] += 1

    def close(self, arrival: Arrival) -> None:
        """Record the step that arrived, and learn from it."""
        emitted = self._grown(arrival)
        decision = self._open.pop(arrival.step, None)
        for missed in [step for step in self._open if step < arrival.step]:
            # Its confidences were overtaken: how far requests grew in it cannot be told from the next step.
            del self._open[missed]
            self.counters["outcome-missed"] += 1
            decision = None
        if decision is None:
            return
        batch = decision.batch
        admitted = np.minimum(arrival.admitted[batch.slots], batch.scheduled)
        grown = emitted[batch.slots]
        accepted = np.maximum(np.minimum(grown - 1, np.minimum(admitted, batch.hopeful)), 0)
        found = Found(int(admitted.sum()), int(accepted.sum()), int(grown.sum()), self._seconds(arrival.step))
        self._settle(decision, found)

    def _grown(self, arrival: Arrival) -> np.ndarray:
        """Return how far each slot's request has grown since the last arrival, int64 [slots]."""
        changed = arrival.generations != self._generations
        if changed.any():
            # One that came and went between two arrivals left nothing to count from.
            known = changed & (arrival.generations == self._newest)
            self._lengths = np.where(changed, arrival.lengths, self._lengths)
            self._lengths[known] = self._first_lengths[known]
            self._generations = arrival.generations
        grown = np.maximum(arrival.lengths - self._lengths, 0)
        self._lengths = arrival.lengths
        return grown

    def _settle(self, decision: Decision, found: Found) -> None:
        notes = list(decision.notes)
        if found.verified != decision.budget:
            notes.append("verified-not-planned")
        elif self._learns:
            self._learn(decision, found, notes)
        self.counters.update(notes)
        self._count(decision, found)
        if self._observer is not None:
            try:
                self._observer(self._record(decision, found, tuple(notes)))
            except Exception as error:  # noqa: BLE001 - a full disk never reaches vLLM
                LOG.warning("the trace ends at step %d: %s", decision.step, error)
                self.counters["trace-ended"] += 1
                self._observer = None

    def _record(self, decision: Decision, found: Found, notes: tuple[str, ...]) -> StepRecord:
        plan = decision.plan()
        return StepRecord(
            step=plan.step,
            state=plan.state.value,
            reason=plan.reason,
            requests=plan.requests,
            certain_tokens=plan.certain_tokens,
            scheduled=plan.scheduled,
            planned=plan.budget,
            verified=found.verified,
            accepted=found.accepted,
            emitted=found.emitted,
            tokens=plan.tokens,
            tier=plan.tier,
            strategy=self._strategy,
            predicted_seconds=plan.predicted_seconds,
            realised_seconds=found.seconds,
            predicted_tokens=plan.predicted_tokens,
            realised_tokens=found.emitted,
            lag=plan.lag,
            digest=f"{plan.digest:016x}",
            fallbacks=notes,
        )

    def _learn(self, decision: Decision, found: Found, notes: list[str]) -> None:
        planner, cost = self._planner, self._planner.cost
        seconds, batch = found.seconds, decision.batch
        if decision.probe is not None:
            planner.decider.learn_from(decision.probe, found.emitted, seconds)
        planner.rate.add(found.emitted, seconds)
        if not batch.total:
            return
        # Beside a prompt's chunk the time says nothing about the priced shape.
        timed = batch.others == 0
        planner.decider.guard.observe(
            trimmed=decision.budget < planner.most(batch),
            predicted_seconds=decision.seconds if timed else None,
            seconds=seconds,
            predicted_tokens=decision.tokens if _foreseen(decision) else 0.0,
            tokens=found.emitted,
        )
        if planner.options.online and timed and seconds is not None and decision.seconds is not None:
            strayed = cost.strayed
            drafting = cost.draft_seconds(batch.requests)
            cost.refresh(decision.tier, 1, 0.0, max(seconds - drafting, 0.01 * seconds), whole=seconds)
            if cost.strayed != strayed:
                notes.append("table-agrees-again" if strayed else "table-left-bounds")
                change = "planned again" if strayed else "full"
                LOG.warning("budgets are %s: %s", change, why_unpriced(cost))

    def _count(self, decision: Decision, found: Found) -> None:
        totals = self.totals
        totals["steps"] += 1
        totals["trimmed"] += decision.budget < decision.batch.total
        totals["scheduled"] += decision.batch.total
        totals["verified"] += found.verified
        totals["accepted"] += found.accepted
        totals["emitted"] += found.emitted
        if totals["steps"] % EVERY == 0:
            LOG.info("adaverify: %s; counters %s", dict(totals), dict(self.counters))


def _foreseen(decision: Decision) -> bool:
    """Return whether the expected tokens are those of the very requests that ran."""
    planned = decision.planned
    return decision.foreseen and (planned is None or np.array_equal(planned, decision.batch.slots))
