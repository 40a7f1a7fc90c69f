"""Host time of one plan; run it with ``pytest --benchmark-only`` on this file.

Confidences uniform in 0 .. 1, four draws in turn; warm cache; eager (every budget a candidate) and one tier
each 8 tokens. Each plan is checked against an exhaustive search before it is timed.
"""

import itertools

import numpy as np
import pytest
import torch

from adaverify_contracts import BudgetReads, Limits, PolicyDescriptor, Seen, StepState
from adaverify_verification import (
    DRAFTER,
    CostModel,
    CostTable,
    Fingerprint,
    ManagerOptions,
    RatioPolicy,
    VerificationManager,
)
from adaverify_verification.relay.base import DEFAULT_DEPTH

DRAFTS = 7


def _seconds(tokens: int) -> float:
    return 0.02 + 0.001 * tokens


def _manager(requests: int, tiers: tuple[int, ...]) -> VerificationManager:
    points = [(n, r, 128, _seconds(n)) for r in (1, requests) for n in range(1, requests * (DRAFTS + 1) + 1)]
    return VerificationManager(
        Limits(max_requests=requests, draft_tokens=DRAFTS, max_model_len=4096, page_size=64),
        "cpu",
        signal=DRAFTER,
        policy=PolicyDescriptor("ratio", BudgetReads.HISTORY, RatioPolicy),
        cost=CostModel(CostTable.from_points(Fingerprint.from_mapping({"bench": 1}), points)),
        tiers=tiers,
        options=ManagerOptions(warmup_steps=0, explore_share=0.0, margin=0.0),
        drafter_seen=Seen.PREFIX,
        drafter_deterministic=True,
    )


@pytest.mark.parametrize("tiered", [False, True])
@pytest.mark.parametrize("requests", [1, 16, 64, 256])
def test_plan(benchmark, requests: int, tiered: bool) -> None:
    """Time ``plan`` alone: relay read, survivals, candidates, prices, choice, digest."""
    tiers = tuple(range(8, requests * 8 + 1, 8)) if tiered else ()
    manager = _manager(requests, tiers)
    generator = np.random.default_rng(0)
    drawn = [generator.random((requests, DRAFTS)).astype(np.float32) for _ in range(DEFAULT_DEPTH)]
    slots, generations = np.arange(requests), np.zeros(requests, dtype=np.int64)
    for step, confidences in enumerate(drawn):
        scores = torch.logit(torch.from_numpy(confidences), eps=1e-6)
        manager.publish(step, slots, generations, scores)
    steps = itertools.cycle(range(len(drawn)))

    def plan():
        scheduled = np.full(requests, DRAFTS)
        return manager.plan(
            StepState(next(steps), slots, generations, scheduled, requests, kv_tokens=128 * requests)
        )

    for confidences in drawn:
        survivals = np.sort(np.cumprod(confidences, axis=1).ravel())[::-1]
        tokens = requests + np.concatenate([[0.0], np.cumsum(survivals)])
        executed = requests + np.arange(len(tokens))
        executed = -(-executed // 8) * 8 if tiered else executed
        rates = tokens / _seconds(executed)
        assert rates[plan().budget] == pytest.approx(rates.max(), rel=1e-4)
    benchmark(plan)
