"""What vLLM's model runner talks to: its seven methods, on our planner, relay and assignment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from adaverify_contracts import AdaverifyError, Policy
from adaverify_verification import ManagerOptions
from adaverify_vllm.assignment import BatchAssigner
from adaverify_vllm.assignment.reference import HOPELESS
from adaverify_vllm.batch import Batch, Seats, read_batch
from adaverify_vllm.clock import StepClock
from adaverify_vllm.costs import (
    NO_PRICES,
    cost_model,
    curves_of,
    profile_runs,
    sizes_to_profile,
    table_of,
    why_unpriced,
)
from adaverify_vllm.history import ConfidenceHistory, used_slots
from adaverify_vllm.outcomes import Observer, Outcomes
from adaverify_vllm.placeholders import even_placeholders
from adaverify_vllm.planning import BudgetPlanner, Decision
from adaverify_vllm.ranks import Ranks

LOG = logging.getLogger("vllm.adaverify")


@dataclass(frozen=True, slots=True)
class Choices:
    """How one manager behaves; plain values.

    Attributes:
        options: of the planner.
        policy: the budget policy.
        backend: of the assignment, ``torch`` or ``triton``.
        agreement: ``rank0`` or ``digest``.
        depth: entries of the relay's ring.
        context: KV length that vLLM profiles at.
        facts: what step times are measured on, by name.
        strategy: who builds the rows, in words of the trace.
        observer: called with each step's record; None records nothing.
        counts: makes vLLM's object of admitted drafts in flight from a host tensor and an event.
    """

    options: ManagerOptions
    policy: Policy
    backend: str
    agreement: str
    depth: int
    context: int
    facts: Mapping[str, object]
    strategy: str
    observer: Observer | None
    counts: Callable[[torch.Tensor, Any], Any]


class BridgeManager:
    """Stands where vLLM's adaptive verification manager stood.

    ``get_num_tokens``, ``compact_batch`` and ``reallocate_drafts`` are the decode path: they read no device
    value and wait for nothing but, with several tensor-parallel ranks, rank 0's budget. What the relay
    brought is read at the end of ``record_confidences``, when the step is launched.

    Args:
        req_states: vLLM's request state.
        query_start_loc: int32 [slots + 1], vLLM's buffer; written by ``reallocate_drafts``.
        num_bonus_tokens: logits rows of each request that are not drafts.
        max_total_logits: logits rows that one chunk holds.
        ranks: the tensor-parallel group.
        choices: how to behave.
        copy_admitted: whether the admitted counts are wanted on the host.
    """

    def __init__(
        self,
        req_states: Any,
        query_start_loc: torch.Tensor,
        num_bonus_tokens: int,
        max_total_logits: int,
        *,
        ranks: Ranks,
        choices: Choices,
        copy_admitted: bool = False,
    ) -> None:
        slots, drafts = int(req_states.max_num_reqs), int(req_states.num_speculative_steps)
        device = torch.device(req_states.device)
        self.req_states = req_states
        self._seats = Seats(req_states)
        self._lengths: torch.Tensor = req_states.total_len.gpu
        self._ranks, self._choices = ranks, choices
        self.history = ConfidenceHistory(slots, drafts, device, choices.depth)
        self.planner = BudgetPlanner(
            choices.options, choices.policy, rows_limit=max_total_logits, bonus=num_bonus_tokens
        )
        self._bonus = num_bonus_tokens
        self._assigner = BatchAssigner(
            self.history.table,
            query_start_loc,
            drafts=drafts,
            bonus=num_bonus_tokens,
            backend=choices.backend,
        )
        self._query_start_loc = query_start_loc
        self._clock = StepClock(device)
        self.outcomes = Outcomes(
            self.planner,
            self._clock.seconds,
            slots=slots,
            observer=choices.observer if ranks.leads else None,
            # Times differ between ranks: where each plans for itself nothing may be learnt from them.
            learns=choices.agreement == "rank0" or ranks.size == 1,
            strategy=choices.strategy,
        )
        self._captured: tuple[int, ...] = ()
        self._step = 0
        self._decision: Decision | None = None
        # The batch of the step under way, and the next step's decision made from it.
        self._last: Batch | None = None
        self._ahead: Decision | None = None
        # Drafts and other query tokens of each request, in the order of the batch.
        self._counts: tuple[np.ndarray, np.ndarray] = (np.zeros(0, np.int32), np.zeros(0, np.int32))
        self._admitted_host = torch.empty(0, dtype=torch.int32)
        if copy_admitted:
            pinned = device.type == "cuda"
            self._admitted_host = torch.empty(slots, dtype=torch.int32, pin_memory=pinned)
        self._copy_admitted = copy_admitted
        self._assigner.warm_up()

    @property
    def counters(self) -> Mapping[str, int]:
        """Every fallback and invalid event by name, counted since the start."""
        dropped = {"relay-dropped": self.history.dropped} if self.history.dropped else {}
        return MappingProxyType({**self.outcomes.counters, **dropped})

    @property
    def recorded(self) -> bool:
        """Whether each step's record goes somewhere."""
        return self._choices.observer is not None

    def add_request(self, req_idx: int) -> None:
        """Take note of a new request in a slot: nothing is known of it."""
        self.history.add(req_idx)
        self._seats.forget()
        length = int(self.req_states.prefill_len.np[req_idx])
        self.outcomes.begin(req_idx, int(self.history.generations[req_idx]), length)

    def batches_to_profile(self, capture_sizes: list[int]) -> Iterator[dict[str, int]]:
        """Yield the arguments of the dummy runs whose times become the cost table."""
        self._captured = tuple(capture_sizes)
        sizes = sizes_to_profile(capture_sizes, int(self.req_states.max_num_batched_tokens))
        yield from profile_runs(sizes, self._choices.context)

    def set_initial_cost_curves(self, samples: list[Any]) -> None:
        """Price steps from vLLM's timings, those of rank 0; without usable ones everything is verified."""
        drafting, forward = self._ranks.from_leader(curves_of(samples) if self._ranks.leads else None)
        last = self._captured[-1] if self._captured else 0
        try:
            table = table_of(
                drafting, forward, last=last, context=self._choices.context, facts=dict(self._choices.facts)
            )
        except AdaverifyError as error:
            LOG.warning("adaverify: every draft is verified: %s (%s)", NO_PRICES, error.problem)
            return
        options = self._choices.options
        cost = cost_model(table, self._captured, online=options.online)
        self.planner.set_cost(cost, self._captured)
        if cost.priced:
            LOG.info("adaverify: %s, tiers up to %d", cost.reason, last)
        else:
            LOG.warning("adaverify: every draft is verified: %s", why_unpriced(cost))

    def get_num_tokens(self, num_tokens_per_req: Mapping[str, int], draft_tokens: Mapping[str, Sized]) -> int:
        """Return the step's query tokens once its budget is chosen.

        Args:
            num_tokens_per_req: scheduled query tokens of each request, drafts included.
            draft_tokens: the drafts of those that have any.
        """
        decision = self._decide(num_tokens_per_req, draft_tokens)
        self._decision = decision
        return decision.batch.certain + decision.budget

    def _decide(self, tokens: Mapping[str, int], drafts: Mapping[str, Sized]) -> Decision:
        step, ranks = self._step, self._ranks
        batch = read_batch(self.req_states, self._seats, tokens, drafts)
        if ranks.size > 1 and self._choices.agreement == "rank0" and not ranks.leads:
            budget, tier = ranks.from_leader(None)
            return self.planner.follow(step, batch, budget, tier)
        ahead, self._ahead = self._ahead, None
        decision = None if ahead is None else self.planner.adapt(ahead, batch)
        if decision is None:
            decision = self._chosen(self.planner.plan, step, batch)
        if ranks.size > 1:
            if self._choices.agreement == "rank0":
                ranks.from_leader((decision.budget, decision.tier))
            elif len(set(ranks.gather(decision.digest))) > 1:
                reason = "ranks planned differently: everything is verified"
                return self.planner.everything(decision, reason, "ranks-disagree")
        return decision

    def _chosen(self, choose: Callable[..., Decision], step: int, batch: Batch) -> Decision:
        survivals, known = self.history.survivals(step, batch.slots)
        lag, odd = self.history.lag(step), self.history.odd
        return choose(step, batch, survivals, lag=lag, foreseen=known, odd=odd)

    def compact_batch(
        self,
        num_draft_tokens_per_req: np.ndarray,
        num_scheduled_tokens: np.ndarray,
        cu_num_logits_np: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the host's query lengths of the trimmed batch, and its logits offsets.

        Lengths are placeholders with the right total; only the device knows who was trimmed. Offsets are
        exact where the budget is 0 or everything, else those of the untrimmed batch.

        Args:
            num_draft_tokens_per_req: int32 [R], in the order of the batch; requests with drafts first.
            num_scheduled_tokens: int32 [R], drafts included.
            cu_num_logits_np: int32 [R + 1].
        """
        decision = self._require_decision()
        certain = num_scheduled_tokens - num_draft_tokens_per_req
        self._counts = (num_draft_tokens_per_req, certain)
        if decision.budget == decision.batch.total:
            return num_scheduled_tokens, cu_num_logits_np
        if decision.budget == 0:
            ends = np.arange(len(certain) + 1, dtype=cu_num_logits_np.dtype) * self._bonus
            return certain, ends
        return certain + even_placeholders(num_draft_tokens_per_req, decision.budget), cu_num_logits_np

    def reallocate_drafts(
        self, req_ids: list[str], idx_mapping: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, int, Any]:
        """Assign the budget on the device and return vLLM's boundaries; launches only.

        Args:
            req_ids: the batch in its order.
            idx_mapping: int64 [R] on the device, their slots.

        Returns:
            Logits offsets int32 [R + 1], the whole buffer of query boundaries, the budget, and the admitted
            counts on their way to the host where they are wanted and not known already.
        """
        decision, self._decision = self._require_decision(), None
        batch, count = decision.batch, len(req_ids)
        scheduled, certain = self._counts
        if batch.hopeful is not batch.scheduled:
            scheduled = scheduled + HOPELESS * self._reading(req_ids)
        self._assigner.stage(scheduled, certain)
        self._clock.start(decision.step)
        self._assigner.assign(idx_mapping, decision.budget, batch.certain + decision.budget)
        self.outcomes.open(decision)
        self._last = batch
        counts = self._admitted(count) if 0 < decision.budget < batch.total else None
        return self._assigner.offsets(count), self._query_start_loc, decision.budget, counts

    def _reading(self, req_ids: list[str]) -> np.ndarray:
        """Return bool [R]: which requests of the batch are still reading their prompt."""
        state = self.req_states
        slots = np.fromiter(map(state.req_id_to_index.__getitem__, req_ids), np.int64, len(req_ids))
        reading: np.ndarray = state.num_computed_tokens_np[slots] < state.prefill_len.np[slots]
        return reading

    def _admitted(self, count: int) -> Any:
        if not self._copy_admitted:
            return None
        host = self._admitted_host[:count]
        host.copy_(self._assigner.admitted[:count], non_blocking=True)
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        return self._choices.counts(host, event)

    def record_confidences(self, confidence_probs: torch.Tensor, input_batch: Any) -> None:
        """Publish the confidences of the drafts just made, and read what earlier steps have sent.

        Args:
            confidence_probs: float32 [at least R, K] on the device, in the order of the batch.
            input_batch: vLLM's batch of this step.
        """
        step = self._step
        self._clock.stop(step)
        slots = input_batch.idx_mapping_np
        self.history.publish(step, input_batch.idx_mapping, slots, confidence_probs, self._lengths)
        self._step = step + 1
        for arrival in self.history.arrivals():
            self.outcomes.close(arrival)
        self.history.refresh(self._step, used_slots(self.req_states))
        # Budgets read history, and that is complete: the next step is sized now, while the device is busy.
        last, self._last = self._last, None
        plans = self._ranks.leads or self._choices.agreement == "digest"
        self._ahead = None
        if last is not None and plans:
            self._ahead = self._chosen(self.planner.look_ahead, self._step, last)

    def _require_decision(self) -> Decision:
        if self._decision is None:
            message = "no budget was chosen for this step: call get_num_tokens first"
            raise AssertionError(message)
        return self._decision
