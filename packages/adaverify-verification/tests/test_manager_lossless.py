"""What the manager does where signal and policy could change sampled output."""

import logging

import numpy as np
import pytest

from adaverify_contracts import (
    LosslessError,
    PlanState,
    Seen,
)
from adaverify_verification import OPTIMISTIC


def steep(n):
    return 1.0 + 0.2 * n


HALF = np.tile([0.9, 0.5, 0.3, 0.1, 0.1, 0.1, 0.1], (4, 1))


def test_unsafe_pairs_downgrade_only_sampled_steps(build):
    """A score that saw the drawn token: greedy steps trim, sampled ones verify everything, counted."""
    manager = build.manager(build.table(steep, (1, 16), 128), seen=Seen.DRAWN_TOKEN, deterministic=False)
    loop = build.loop(manager, steep)
    loop.serve(HALF)
    sampled, greedy = loop.serve(HALF, sampled=True), loop.serve(HALF)
    assert sampled.budget == 28
    assert "token drawn" in sampled.reason
    assert sampled.state is PlanState.FULL
    assert loop.records[1].fallbacks == ("lossless-downgrade",)
    assert manager.counters["lossless-downgrade"] == 1
    assert greedy.state is PlanState.TRIMMING


def test_a_downgrade_is_said_at_the_start(build, caplog):
    """Once, with the reason; a safe pair says nothing."""
    table = build.table(steep, (1, 16), 128)
    with caplog.at_level(logging.WARNING):
        build.manager(table, seen=Seen.PREFIX, deterministic=False)
        assert not caplog.records
        build.manager(table, seen=Seen.DRAWN_TOKEN, deterministic=False)
    (record,) = caplog.records
    assert "sampled requests are verified whole" in record.message
    assert "token drawn" in record.message


def test_unsafe_pairs_downgrade_the_sampled_requests_of_a_mixed_step(build):
    """Request by request: sampled ones are verified whole, the greedy ones beside them are trimmed."""
    manager = build.manager(build.table(steep, (1, 16), 128), seen=Seen.DRAWN_TOKEN, deterministic=False)
    loop, scores = build.loop(manager, steep), np.tile([0.97, 0.9, 0.6, 0.1, 0.1, 0.1, 0.1], (4, 1))
    mixed = np.array([False, True, False, True])
    scores[1] = 0.01
    plan = loop.serve(scores, sampled=True, sampled_requests=mixed)
    admitted = manager.buffers["admitted"][:4].tolist()
    assert admitted[1] == admitted[3] == 7
    assert 0 < admitted[0] < 7
    assert plan.budget == sum(admitted) < 28
    assert plan.state is PlanState.TRIMMING
    assert plan.lag == 0
    assert "token drawn" in plan.reason and "margin" in plan.reason
    assert loop.records[0].fallbacks == ("lossless-downgrade",)
    # Expected tokens count what the sampled ones are likely to keep, not what they have verified.
    survivals = np.cumprod(scores, axis=1)
    assert plan.full_tokens == pytest.approx(4 + survivals.sum(), abs=0.01)
    everything = loop.serve(scores, sampled=True, sampled_requests=np.ones(4, dtype=bool))
    assert (everything.budget, everything.state) == (28, PlanState.FULL)


def test_a_logits_chunk_cuts_sampled_requests_by_position_alone(build):
    """Where not even everything fits, an unsafe score must not decide what is cut (maths M6)."""
    manager = build.manager(build.table(steep, (1, 16), 128), seen=Seen.DRAWN_TOKEN, deterministic=False)
    loop, admitted = build.loop(manager, steep), []
    for scores in ([0.1, 0.9], [0.9, 0.1]):
        plan = loop.serve(np.tile(np.array(scores)[:, None], (1, 7)), sampled=True, chunk_limit=2 + 5)
        assert plan.budget == 5
        admitted.append(manager.buffers["admitted"][:2].tolist())
    assert admitted[0] == admitted[1] == [3, 2]


def test_unsafe_pairs_can_be_refused_when_built(build):
    """``refuse`` raises LosslessError; a deterministic drafter lifts it."""
    table = build.table(steep, (1, 16), 128)
    with pytest.raises(LosslessError):
        build.manager(table, seen=Seen.DRAWN_TOKEN, deterministic=False, lossless="refuse")
    build.manager(table, seen=Seen.DRAWN_TOKEN, deterministic=True, lossless="refuse")
    build.manager(table, signal=OPTIMISTIC, seen=Seen.DRAWN_TOKEN, deterministic=False, lossless="refuse")


def test_sampled_drafts_size_the_budget_from_the_step_before(build):
    """Lag 1: the live values of this step must not move its budget (maths M4, M5)."""
    table = build.table(steep, (1, 16), 128)
    poor, rich = np.full((4, 7), 0.2), np.full((4, 7), 0.97)
    budgets = []
    for second in (poor, rich):
        loop = build.loop(build.manager(table, deterministic=False), steep)
        loop.serve(HALF)
        plan = loop.serve(second, sampled=True)
        assert plan.lag == 1
        budgets.append((plan.budget, plan.digest))
    assert budgets[0] == budgets[1]
    loop = build.loop(build.manager(table, deterministic=True), steep)
    loop.serve(HALF)
    assert loop.serve(rich, sampled=True).budget > budgets[0][0]
