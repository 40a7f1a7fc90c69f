"""A manager with the real parts, and a small serving loop around it."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from adaverify_contracts import BudgetReads, Limits, Plan, PolicyDescriptor, Seen, StepOutcome, StepState
from adaverify_verification import (
    DRAFTER,
    CostModel,
    CostTable,
    Fingerprint,
    ManagerOptions,
    RatioPolicy,
    VerificationManager,
    contention,
)

HERE = Fingerprint.from_mapping({"device": "cpu"})
RATIO = PolicyDescriptor("ratio", BudgetReads.HISTORY, RatioPolicy)


@pytest.fixture(autouse=True)
def nobody_waits(request, monkeypatch):
    """Tests run beside others; what they wait for a processor is no part of a made-up machine's times."""
    if request.module.__name__.rpartition(".")[2] != "test_contention":
        monkeypatch.setattr(contention, "thread_waits", dict)


def make_table(seconds, requests, highest, context=128, **more):
    """A table of ``seconds(tokens)`` at every token count, the same for each number of requests."""
    points = [(n, r, context, seconds(n)) for r in requests for n in range(1, highest + 1)]
    return CostTable.from_points(HERE, points, **more)


def make_manager(
    table,
    *,
    tiers=(),
    requests=16,
    drafts=7,
    signal=DRAFTER,
    policy=RATIO,
    seen=Seen.PREFIX,
    deterministic=True,
    online=False,
    **options,
):
    """A manager on the CPU; options as in ``ManagerOptions``, without warm-up or exploration unless asked."""
    chosen = ManagerOptions(**{"warmup_steps": 0, "explore_share": 0.0, "online": online, **options})
    return VerificationManager(
        Limits(max_requests=requests, draft_tokens=drafts, max_model_len=4096, page_size=16),
        "cpu",
        signal=signal,
        policy=policy,
        cost=CostModel(table, online=online),
        tiers=tiers,
        options=chosen,
        drafter_seen=seen,
        drafter_deterministic=deterministic,
    )


def make_state(step, requests, drafts=7, **more):
    """A step of ``requests`` with slots 0 .. R - 1, everything scheduled unless told otherwise."""
    facts = {
        "slots": np.arange(requests),
        "generations": np.zeros(requests, dtype=np.int64),
        "scheduled": np.full(requests, drafts),
        "emitting": requests,
        "kv_tokens": 128 * requests,
        **more,
    }
    return StepState(step=step, **facts)


def logits(confidences):
    """Scores float32 whose sigmoid is ``confidences``: what the ``drafter`` signal turns back."""
    clipped = np.clip(np.asarray(confidences, dtype=np.float64), 1e-6, 1 - 1e-6)
    return torch.tensor(np.log(clipped / (1 - clipped)), dtype=torch.float32)


@dataclass
class Loop:
    """Serves synthetic steps through a manager and keeps the tally.

    ``seconds(tokens)`` is the device's time; a step takes no less than ``host``, None where nobody knows.
    """

    manager: VerificationManager
    seconds: object
    host: float | None = None
    drafts: int = 7
    step: int = 0
    tokens: int = 0
    time: float = 0.0
    plans: list[Plan] = field(default_factory=list)
    records: list = field(default_factory=list)
    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def serve(self, confidences, truth=None, **more):
        """Run one step; ``truth`` [R, K] is the real acceptance, the confidences where None."""
        confidences = np.asarray(confidences, dtype=np.float64)
        requests = len(confidences)
        state = make_state(self.step, requests, self.drafts, **more)
        scores = logits(confidences)
        self.manager.publish(self.step, state.slots, state.generations, scores)
        plan = self.manager.plan(state)
        scheduled = torch.tensor(state.scheduled, dtype=torch.int32)
        lens = torch.full((requests,), 128, dtype=torch.int32)
        decode = requests + plan.budget
        assignment = self.manager.assign(plan, scheduled, lens, decode)
        admitted = assignment.admitted.numpy().astype(np.int64)
        coins = self.generator.random(confidences.shape) < (
            confidences if truth is None else np.asarray(truth)
        )
        kept = np.cumprod(coins, axis=1) * (np.arange(self.drafts) < admitted[:, None])
        accepted = kept.sum(axis=1).astype(np.int64)
        outcome = StepOutcome(
            step=self.step,
            slots=state.slots,
            generations=state.generations,
            drafted=np.asarray(state.scheduled),
            admitted=admitted,
            accepted=accepted,
            scores=scores.numpy(),
            learn=np.ones(requests, dtype=bool),
            sampled=np.zeros(requests, dtype=bool),
            emitted=int(accepted.sum()) + requests,
            seconds=max(float(self.seconds(plan.tier)), self.host or 0.0),
            host_seconds=self.host,
        )
        self.records.append(self.manager.observe(outcome, plan, "reference"))
        self.plans.append(plan)
        self.tokens += outcome.emitted
        self.time += outcome.seconds
        self.step += 1
        return plan

    @property
    def rate(self):
        """Tokens a second so far."""
        return self.tokens / self.time


@pytest.fixture
def build():
    """Return the builders as one namespace."""

    class Builders:
        table = staticmethod(make_table)
        manager = staticmethod(make_manager)
        state = staticmethod(make_state)
        logits = staticmethod(logits)
        loop = Loop

    return Builders
