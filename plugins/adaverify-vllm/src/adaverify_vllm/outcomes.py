"""What became of a step: the record of the trace, the counters, and what the planner learns."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

import numpy as np

from adaverify_contracts import StepOutcome, StepRecord
from adaverify_verification.records import write_record
from adaverify_vllm.history import Arrival
from adaverify_vllm.planning import BudgetPlanner, Decision

LOG = logging.getLogger("vllm.adaverify")

# Steps that wait for their outcome: the relay's ring and the host's lead are shorter.
OPEN = 32
# A line of totals this often, at most.
EVERY = 2000

Observer = Callable[[StepRecord], None]


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
        accepted = np.clip(grown - 1, 0, np.minimum(admitted, batch.hopeful))
        outcome = StepOutcome(
            step=arrival.step,
            slots=batch.slots,
            generations=arrival.generations[batch.slots],
            drafted=batch.scheduled,
            admitted=admitted,
            accepted=accepted,
            scores=np.zeros((len(admitted), int(batch.scheduled.max(initial=0))), dtype=np.float32),
            learn=np.ones(len(admitted), dtype=bool),
            sampled=np.ones(len(admitted), dtype=bool),
            emitted=int(grown.sum()),
            seconds=self._seconds(arrival.step),
        )
        self._settle(decision, outcome)

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

    def _settle(self, decision: Decision, outcome: StepOutcome) -> None:
        verified = int(outcome.admitted.sum())
        notes = list(decision.notes)
        if verified != decision.budget:
            notes.append("verified-not-planned")
        elif self._learns:
            self._learn(decision, outcome, notes)
        self.counters.update(notes)
        self._count(decision, outcome, verified)
        if self._observer is not None:
            record = write_record(outcome, decision.plan(), self._strategy, notes=tuple(notes))
            try:
                self._observer(record)
            except Exception as error:  # noqa: BLE001 - a full disk never reaches vLLM
                LOG.warning("the trace ends at step %d: %s", outcome.step, error)
                self.counters["trace-ended"] += 1
                self._observer = None

    def _learn(self, decision: Decision, outcome: StepOutcome, notes: list[str]) -> None:
        planner, cost = self._planner, self._planner.cost
        seconds, batch = outcome.seconds, decision.batch
        if decision.probe is not None:
            planner.decider.learn_from(decision.probe, outcome.emitted, seconds)
        planner.rate.add(outcome.emitted, seconds)
        if not batch.total:
            return
        # Beside a prompt's chunk the time says nothing about the priced shape.
        timed = batch.others == 0
        planner.decider.guard.observe(
            trimmed=decision.budget < planner.most(batch),
            predicted_seconds=decision.seconds if timed else None,
            seconds=seconds,
            predicted_tokens=decision.tokens if decision.foreseen else 0.0,
            tokens=outcome.emitted,
        )
        if planner.options.online and timed and seconds is not None and decision.seconds is not None:
            strayed = cost.strayed
            drafting = cost.draft_seconds(batch.requests)
            cost.refresh(decision.tier, 1, 0.0, max(seconds - drafting, 0.01 * seconds))
            if cost.strayed != strayed:
                notes.append("table-agrees-again" if strayed else "table-left-bounds")
                change = "planned again" if strayed else "full"
                LOG.warning("budgets are %s: %s", change, cost.reason)

    def _count(self, decision: Decision, outcome: StepOutcome, verified: int) -> None:
        totals = self.totals
        totals["steps"] += 1
        totals["trimmed"] += decision.budget < decision.batch.total
        totals["scheduled"] += decision.batch.total
        totals["verified"] += verified
        totals["accepted"] += int(outcome.accepted.sum())
        totals["emitted"] += outcome.emitted
        if totals["steps"] % EVERY == 0:
            LOG.info("adaverify: %s; counters %s", dict(totals), dict(self.counters))
