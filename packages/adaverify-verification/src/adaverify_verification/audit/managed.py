"""The verification manager itself as a rule: a signal and a policy, audited as they are served.

The manager lives through some steps (its history), then one step is enumerated: for every combination of
drafts a copy of the manager scores, plans and assigns them, exactly as in serving. Nothing of the guard, the
exploration, the cost model or the assignment is left out.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from adaverify_contracts import (
    BudgetReads,
    Limits,
    Plan,
    PolicyDescriptor,
    Seen,
    SignalDescriptor,
    StepOutcome,
    StepState,
)
from adaverify_verification.audit.enumeration import Prefix, Revealed, ToyRequest, random_request, reveal
from adaverify_verification.cost_model import CostModel
from adaverify_verification.cost_table import CostTable
from adaverify_verification.fingerprint import Fingerprint
from adaverify_verification.manager import VerificationManager
from adaverify_verification.options import ManagerOptions

CONTEXT = 64
HISTORY_STEPS = 32
"""Enough for the built-in signals to fit twice (every 16th labelled step)."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One toy to serve: laws, prices and what is declared.

    Attributes:
        requests: laws of each request.
        greedy: which requests are greedy; their target laws are one-hot.
        positions: K.
        scores: what the toy drafter's score for position k has really seen.
        declared: what the drafter declares to have seen.
        deterministic: drafts are a function of the prefix; the draft laws are one-hot.
        prices: seconds of a step by tokens, 1 .. R (K + 1), never falling.
        tiers: captured token counts, none in eager mode.
    """

    requests: tuple[ToyRequest, ...]
    greedy: tuple[bool, ...]
    positions: int
    scores: Seen
    declared: Seen
    deterministic: bool
    prices: tuple[float, ...]
    tiers: tuple[int, ...]

    @property
    def limits(self) -> Limits:
        """The smallest limits that hold the toy."""
        return Limits(
            max_requests=len(self.requests),
            draft_tokens=self.positions,
            max_model_len=2 * CONTEXT,
            page_size=16,
        )


class ManagedRule:
    """A rule for ``emitted_law``: the drafts that a manager admits after a fixed history.

    Args:
        signal: the confidence source.
        policy: the budget policy.
        setup: the toy.
        seed: of the history.
        options: of the manager; adaptive without warm-up by default, so that there is something to audit.

    Attributes:
        trimmed: enumerated combinations of drafts of which some were verified and some not.
        shown: enumerated combinations.
        counters: every fallback that the manager counted, by name.
    """

    def __init__(
        self,
        signal: SignalDescriptor,
        policy: PolicyDescriptor,
        setup: Setup,
        *,
        seed: int = 0,
        options: ManagerOptions | None = None,
    ) -> None:
        self._plugins = (signal, policy)
        self._options = ManagerOptions(warmup_steps=0, online=False) if options is None else options
        self._setup, self._seed = setup, seed
        self._table = _table(setup)
        self._manager = self._experienced()
        self.trimmed = self.shown = 0
        self.counters: Counter[str] = Counter(self._manager.counters)

    def __call__(self, shown: Revealed) -> list[int]:
        """Return the admitted drafts of each request."""
        # Every combination of drafts meets the same history; what this step does to the manager is forgotten.
        manager = self._twin()
        admitted, _, _ = self._serve(manager, HISTORY_STEPS, shown)
        self.counters.update(Counter(manager.counters) - Counter(self._manager.counters))
        self.shown += 1
        self.trimmed += 0 < int(admitted.sum()) < len(self._setup.requests) * self._setup.positions
        return [int(count) for count in admitted]

    def _experienced(self) -> VerificationManager:
        """Return a manager that has served ``HISTORY_STEPS`` steps; always the same one."""
        setup = self._setup
        signal, policy = self._plugins
        with _quietly():
            manager = VerificationManager(
                setup.limits,
                "cpu",
                signal=signal,
                policy=policy,
                cost=CostModel(self._table, online=False),
                tiers=setup.tiers,
                options=self._options,
                drafter_seen=setup.declared,
                drafter_deterministic=setup.deterministic,
            )
        generator = np.random.default_rng(self._seed)
        for step in range(HISTORY_STEPS):
            self._live_through(manager, step, generator)
        return manager

    def _twin(self) -> VerificationManager:
        try:
            return copy.deepcopy(self._manager, {id(self._table): self._table})
        except Exception:  # noqa: BLE001 - a plugin that holds what cannot be copied lives its history again
            return self._experienced()

    def _live_through(self, manager: VerificationManager, step: int, generator: np.random.Generator) -> None:
        """Serve one step of drafts and an outcome, drawn from laws of its own: history may be anything."""
        setup = self._setup
        width = len(setup.requests[0].target[()])
        requests = [
            random_request(
                generator, setup.positions, width, greedy=greedy, deterministic=setup.deterministic
            )
            for greedy in setup.greedy
        ]
        tokens = [_draw(request, setup.positions, generator) for request in requests]
        shown = reveal(requests, tokens, setup.positions)
        admitted, plan, scores = self._serve(manager, step, shown)
        accepted = np.array(
            [
                _accepted(request, drafted, int(count), generator)
                for request, drafted, count in zip(requests, tokens, admitted, strict=True)
            ]
        )
        state = self._state(step)
        seconds = setup.prices[min(plan.tier, len(setup.prices)) - 1] * generator.uniform(0.97, 1.03)
        outcome = StepOutcome(
            step=step,
            slots=state.slots,
            generations=state.generations,
            drafted=state.scheduled,
            admitted=admitted,
            accepted=accepted,
            scores=scores.numpy(),
            learn=np.ones(state.requests, dtype=bool),
            sampled=~np.array(setup.greedy),
            emitted=int(accepted.sum()) + state.requests,
            seconds=float(seconds),
        )
        manager.observe(outcome, plan, "toy")

    def _serve(
        self, manager: VerificationManager, step: int, shown: Revealed
    ) -> tuple[np.ndarray, Plan, torch.Tensor]:
        """Return admitted drafts int64 [R], the plan and the scores float32 [R, K] of one step."""
        state = self._state(step)
        scores = _scores(shown, self._setup.scores)
        manager.publish(step, state.slots, state.generations, scores)
        plan = manager.plan(state)
        scheduled = torch.from_numpy(state.scheduled.astype(np.int32))
        lengths = torch.full((state.requests,), CONTEXT, dtype=torch.int32)
        assignment = manager.assign(plan, scheduled, lengths, state.requests + plan.budget)
        return assignment.admitted.numpy().astype(np.int64), plan, scores

    def _state(self, step: int) -> StepState:
        requests = len(self._setup.requests)
        sampled = ~np.array(self._setup.greedy)
        return StepState(
            step=step,
            slots=np.arange(requests),
            generations=np.zeros(requests, dtype=np.int64),
            scheduled=np.full(requests, self._setup.positions),
            emitting=requests,
            kv_tokens=CONTEXT * requests,
            sampled=bool(sampled.any()),
            sampled_requests=sampled,
        )


def trusting(
    signal: SignalDescriptor, policy: PolicyDescriptor, setup: Setup
) -> tuple[SignalDescriptor, PolicyDescriptor, Setup]:
    """Return the same plugins with declarations that the manager takes for safe: what the rule really does.

    Signal and drafter claim to have seen the prefix only, and a policy that reads live values claims to stop
    at the frontier.
    """
    reads = BudgetReads.FRONTIER if policy.reads is BudgetReads.LIVE else policy.reads
    return (
        replace(signal, seen=min(signal.seen, Seen.PREFIX)),
        replace(policy, reads=reads),
        replace(setup, declared=min(setup.declared, Seen.PREFIX)),
    )


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep what a manager says at its start to itself: an audit makes hundreds, and reports the same."""
    logger = logging.getLogger(VerificationManager.__module__)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _table(setup: Setup) -> CostTable:
    points = [
        (tokens, requests, context, seconds)
        for tokens, seconds in enumerate(setup.prices, 1)
        for requests in (1, len(setup.requests))
        for context in (1, 2 * CONTEXT)
    ]
    return CostTable.from_points(Fingerprint.from_mapping({"device": "a toy"}), points)


def _scores(shown: Revealed, seen: Seen) -> torch.Tensor:
    """Return float32 [R, K] log-odds of a constant, of the true acceptance or of the drawn token's share."""
    shares = {
        Seen.HISTORY: np.full_like(shown.confidences, 0.7),
        Seen.PREFIX: shown.confidences,
        Seen.DRAWN_TOKEN: shown.drawn,
    }[seen]
    clipped = np.clip(shares, 1e-6, 1.0 - 1e-6)
    return torch.from_numpy(np.log(clipped / (1.0 - clipped)).astype(np.float32))


def _draw(request: ToyRequest, positions: int, generator: np.random.Generator) -> Prefix:
    drafted: Prefix = ()
    for _ in range(positions):
        law = request.draft[drafted]
        drafted = (*drafted, int(generator.choice(len(law), p=law)))
    return drafted


def _accepted(request: ToyRequest, drafted: Prefix, admitted: int, generator: np.random.Generator) -> int:
    for k in range(admitted):
        target, draft = (law[drafted[:k]][drafted[k]] for law in (request.target, request.draft))
        if generator.random() * draft >= target:
            return k
    return admitted
