"""Decode steps that are planned and staged with the real parts, on a CPU."""

from dataclasses import replace

import numpy as np
import torch

from adaverify_contracts import (
    PlanState,
)


def test_a_trimmed_step_is_planned_staged_and_recorded(kit, verifier):
    """The design's example, end to end with real parts: lengths [3, 1, 4, 0] flatten to ten rows."""
    checker = verifier(cost_table=kit.cost, settings=kit.settings, mode="adaptive")
    scores = torch.full((3, 3), kit.hopeless)
    scores[0, :2] = kit.sure
    scores[2] = kit.sure
    state = kit.state(1, [3, 3, 3])
    checker.publish(1, state.slots, state.generations, scores)
    plan = checker.plan(state)
    assert (plan.state, plan.budget, plan.tokens) == (PlanState.TRIMMING, 5, 8)

    staged = checker.stage(
        plan, *kit.tensors([3, 3, 3], [7, 6, 8]), kit.table(), padded_requests=4, padded_tokens=10
    )
    assert staged.strategy == "reference"
    assert "4 of 9 draft tokens are trimmed" in staged.reason
    assert staged.assignment.admitted.tolist() == [2, 0, 3, 0]
    assert staged.assignment.query_start_loc.tolist() == [0, 3, 4, 8, 8]
    assert staged.assignment.seq_lens.tolist() == [10, 7, 12, 0]
    assert staged.rows.row_lens.flatten().tolist() == [8, 9, 10, 7, 9, 10, 11, 12, 0, 0]
    assert staged.rows.row_request.tolist() == [0, 0, 0, 1, 2, 2, 2, 2, 12, 13]

    record = checker.observe(kit.outcome(state, plan, staged), plan)
    assert (record.strategy, record.planned, record.verified, record.state) == ("reference", 5, 5, "trimming")
    assert record.lag == 0
    assert record.fallbacks == ()
    assert checker.counters == {}


def test_full_verification_takes_the_uniform_path(kit, verifier):
    """Fixed mode: nothing trimmed, one row a request, on the fast path."""
    checker = verifier(mode="fixed")
    state = kit.state(1, [3, 3])
    plan = checker.plan(state)
    staged = checker.stage(plan, *kit.tensors([3, 3], [5, 9]), kit.table(), padded_requests=3)
    assert staged.strategy == "uniform"
    assert staged.rows.row_lens.tolist() == [[6, 7, 8, 9], [10, 11, 12, 13], [0, 0, 0, 0]]
    assert checker.observe(kit.outcome(state, plan, staged), plan).strategy == "uniform"


def test_fixed_mode_with_unequal_schedules_takes_the_ragged_path(kit, verifier):
    """A request without drafts makes the batch ragged although nothing is trimmed."""
    checker = verifier(mode="fixed")
    plan = checker.plan(kit.state(1, [3, 0, 1]))
    staged = checker.stage(plan, *kit.tensors([3, 0, 1], [4, 4, 4]), kit.table())
    assert (staged.strategy, plan.budget) == ("reference", 4)
    assert staged.assignment.query_start_loc.tolist() == [0, 4, 5, 7]
    assert staged.rows.row_lens.flatten().tolist() == [5, 6, 7, 8, 5, 5, 6]


def test_mode_none_verifies_nothing_on_the_uniform_path(kit, verifier):
    """Every query length is 1, whatever was drafted."""
    checker = verifier(mode="none")
    plan = checker.plan(kit.state(1, [3, 2]))
    staged = checker.stage(plan, *kit.tensors([3, 2], [4, 8]), kit.table())
    assert (plan.state, plan.budget, staged.strategy) == (PlanState.IDLE, 0, "uniform")
    assert staged.rows.row_lens.tolist() == [[5], [9]]


def test_a_single_trimmed_request_takes_the_uniform_path(kit, verifier):
    """R = 1 has equal host and device boundaries."""
    limits = replace(kit.limits, draft_tokens=15, max_model_len=52)
    checker = verifier(limits=limits, cost_table=kit.cost, settings=kit.settings)
    state = kit.state(1, [15])
    checker.publish(1, state.slots, state.generations, torch.full((1, 15), kit.sure))
    plan = checker.plan(state)
    assert 0 < plan.budget < 15
    staged = checker.stage(plan, *kit.tensors([15], [9]), kit.table(limits))
    assert staged.strategy == "uniform"
    assert f"query length {1 + plan.budget}" in staged.reason
    assert staged.rows.row_lens.tolist() == [list(range(10, 11 + plan.budget))]


def test_an_empty_step_is_ordinary(kit, verifier):
    """The drain to zero: R = 0, nothing verified, rows of padding only."""
    checker = verifier(cost_table=kit.cost, settings=kit.settings)
    state = kit.state(1, [])
    plan = checker.plan(state)
    staged = checker.stage(plan, *kit.tensors([], []), kit.table(), padded_requests=2, padded_tokens=2)
    assert staged.rows.row_lens.flatten().tolist() == [0, 0]
    assert staged.assignment.query_start_loc.tolist() == [0, 0, 0]
    checker.observe(kit.outcome(state, plan, staged), plan)


def test_padding_is_rewritten_every_step(kit, verifier):
    """vllm #47066: 2 requests after 4: the tail is null, not what the larger batch left."""
    checker = verifier(mode="fixed")
    plan = checker.plan(kit.state(1, [3, 2, 3, 3]))
    checker.stage(plan, *kit.tensors([3, 2, 3, 3], [9, 9, 9, 9]), kit.table())
    plan = checker.plan(kit.state(2, [3, 2]))
    staged = checker.stage(
        plan, *kit.tensors([3, 2], [4, 4]), kit.table(), padded_requests=4, padded_tokens=15
    )
    assert staged.assignment.seq_lens.tolist() == [8, 7, 0, 0]
    assert staged.assignment.admitted.tolist() == [3, 2, 0, 0]
    assert staged.rows.row_lens.flatten().tolist() == [5, 6, 7, 8, 5, 6, 7, *([0] * 8)]
    assert (staged.rows.row_token.flatten()[7:] == -1).all()


def test_host_arrays_are_accepted_and_a_short_table_is_copied(kit, verifier):
    """NumPy inputs and a table with one row a request give the same rows as device inputs."""
    checker = verifier(mode="fixed")
    plan = checker.plan(kit.state(1, [3, 1]))
    table = kit.table(requests=2)
    first = checker.stage(plan, *kit.tensors([3, 1], [5, 9]), table, padded_requests=3, padded_tokens=8)
    expected = [first.rows.row_lens.clone(), first.rows.block_table.clone()]
    second = checker.stage(
        plan,
        np.array([3, 1], dtype=np.int32),
        np.array([5, 9], dtype=np.int32),
        table.long(),
        padded_requests=3,
        padded_tokens=8,
    )
    assert torch.equal(second.rows.row_lens, expected[0])
    assert torch.equal(second.rows.block_table, expected[1])
    assert second.rows.block_table[4, :3].tolist() == table[1, :3].tolist()
