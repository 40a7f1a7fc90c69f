"""One decision for all ranks: digests, export, apply, agreement."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import PlanError, PlanState
from adaverify_verification import agree, apply_plan, common_tier, export_plan
from adaverify_verification.digest import EXPORTED, digest


def steep(n):
    return 1.0 + 0.2 * n


def test_a_plan_survives_its_export(build):
    """Rank 0's integers rebuild the plan: same shape, same digest."""
    manager = build.manager(build.table(steep, (1, 16), 128))
    manager.publish(0, np.arange(3), np.zeros(3, np.int64), build.logits(np.full((3, 7), 0.6)))
    state = build.state(0, 3)
    plan = manager.plan(state)
    integers = manager.export(plan)
    assert len(integers) == EXPORTED
    assert all(type(value) is int for value in integers)
    applied = apply_plan(state, np.array(integers))
    for name in ("step", "state", "budget", "scheduled", "tokens", "tier", "uniform_query_len", "digest"):
        assert getattr(applied, name) == getattr(plan, name)
    assert export_plan(applied) == integers


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=8), st.integers(0, 7))
@settings(max_examples=50, deadline=None)
def test_digests_tell_integers_apart(values, place):
    """64 bits, equal for equal integers, other for one changed integer."""
    changed = list(values)
    changed[place % len(values)] += 1
    assert digest(values) == digest(tuple(values)) != digest(changed)
    assert 0 <= digest(values) < 2**64


def test_two_planners_a_thousandth_apart_run_one_plan_down_to_the_last_request(build):
    """vllm #54011, #56831: near ties, 256 requests to 0; rank 1 applies rank 0's plan at each step."""
    table = build.table(steep, (1, 256), 2048)
    ranks = [build.manager(table, requests=256) for _ in range(2)]
    generator = np.random.default_rng(5)
    for step, requests in enumerate([256, 64, 8, 7, 2, 1, 0]):
        confidences = np.round(generator.random((requests, 7)), 1)
        state = build.state(step, requests)
        for rank, manager in enumerate(ranks):
            scores = build.logits(confidences - 1e-3 * rank)
            manager.publish(step, state.slots, state.generations, scores)
        first = ranks[0].plan(state)
        second = ranks[1].apply(state, ranks[0].export(first))
        assert export_plan(second) == export_plan(first)
        assert agree([first.digest, second.digest])
        assert np.isfinite(first.full_tokens)
        assert 0 <= first.budget <= 7 * requests


def test_equal_history_gives_equal_plans(build):
    """Two ranks fed alike never differ, ties, exploration and hysteresis included."""
    table = build.table(steep, (1, 16), 128)
    loops = [
        build.loop(build.manager(table, tiers=(8, 16, 32, 64), explore_share=0.05), steep) for _ in range(2)
    ]
    generator = np.random.default_rng(2)
    for _ in range(60):
        confidences = np.round(generator.random((5, 7)), 1)
        plans = [loop.serve(confidences) for loop in loops]
        assert plans[0] == plans[1]


def test_disagreement_is_counted_and_verifies_everything(build):
    """sglang #33614: a digest finds it, nothing waits on it."""
    manager = build.manager(build.table(steep, (1, 16), 128))
    manager.publish(0, np.arange(3), np.zeros(3, np.int64), build.logits(np.full((3, 7), 0.5)))
    state = build.state(0, 3)
    plan = manager.plan(state)
    assert plan.budget < 21
    assert manager.agree(state, plan, [plan.digest, plan.digest]) is plan
    settled = manager.agree(state, plan, [plan.digest, plan.digest ^ 1])
    assert settled.budget == 21
    assert settled.state is PlanState.FULL
    assert "ranks" in settled.reason
    assert manager.counters["ranks-disagree"] == 1
    other = build.manager(build.table(steep, (1, 16), 128))
    assert other.agree(state, other.plan(state), [1, 2]).digest == settled.digest


def test_a_plan_of_another_batch_is_refused(build):
    """Another step, another number of requests, another schedule, or integers that are no plan."""
    manager = build.manager(build.table(steep, (1, 16), 128))
    integers = manager.export(manager.plan(build.state(3, 2)))
    for state in (
        build.state(4, 2),
        build.state(3, 3),
        build.state(3, 2, scheduled=np.array([7, 6])),
        build.state(3, 2, chunk_limit=4),
    ):
        with pytest.raises(PlanError):
            manager.apply(state, integers)
    for broken in (integers[:-1], (3, 99, *integers[2:]), ()):
        with pytest.raises(PlanError, match="not an exported plan"):
            manager.apply(build.state(3, 2), broken)


@pytest.mark.parametrize(
    ("tokens", "tiers", "size"),
    [
        ([24, 0], (8, 16, 24), 24),
        ([27, 28], (24, 27, 32), 32),
        ([0, 0], (8, 16), 8),
        ([40, 2], (8, 16), 40),
        ([3, 9], (), 9),
        ([], (), 0),
    ],
)
def test_data_parallel_ranks_execute_one_size(tokens, tiers, size):
    """vllm #35376, #48720: an idle rank's dummy batch, 27 against 28 rows, tiers 24, 27, 32."""
    assert common_tier(tokens, tiers) == size


def test_the_digest_covers_what_fixes_the_shape_and_nothing_else(build):
    """Floats and words differ by rank some day; they do not fix a shape."""
    manager = build.manager(build.table(steep, (1, 16), 128))
    plan = manager.plan(build.state(0, 2))
    same = apply_plan(build.state(0, 2), export_plan(dataclasses.replace(plan, predicted_tokens=99.0)))
    assert same.digest == plan.digest
    assert manager.plan(build.state(1, 2)).digest != plan.digest


def test_accepted_counts_that_differ_between_ranks_are_found_in_the_next_step(build):
    """sglang #33614: one plan, another accepted count on rank 1; nothing waits, everything is verified."""
    ranks = [build.manager(build.table(steep, (1, 16), 128)) for _ in range(2)]
    plans = []
    for manager in ranks:
        state = build.state(0, 3)
        manager.publish(0, state.slots, state.generations, build.logits(np.full((3, 7), 0.5)))
        plans.append(manager.plan(state))
    assert plans[0].digest == plans[1].digest
    # Rank 0 accepted 4 drafts, rank 1 accepted 5: the same slots, schedule and budget, one KV token more.
    states = [build.state(1, 3, kv_tokens=3 * 128 + 3 + accepted) for accepted in (4, 5)]
    found = []
    for manager, state in zip(ranks, states, strict=True):
        manager.publish(1, state.slots, state.generations, build.logits(np.full((3, 7), 0.5)))
        found.append(manager.plan(state))
    assert found[0].budget == found[1].budget < 21
    digests = [plan.digest for plan in found]
    assert digests[0] != digests[1]
    for manager, state, plan in zip(ranks, states, found, strict=True):
        settled = manager.agree(state, plan, digests)
        assert (settled.budget, settled.uniform_query_len) == (21, 8)
        assert manager.counters["ranks-disagree"] == 1


@pytest.mark.parametrize("requests", [256, 8, 1, 0])
def test_a_rank_a_thousandth_apart_at_a_tie_applies_rank_0s_plan(build, requests):
    """vllm #56831: on rank 1 one confidence is 1e-3 lower where survivals tie at B; while draining too."""
    table = build.table(steep, (1, 256), 2048)
    ranks = [build.manager(table, requests=256, tiers=(8, 16, 64, 512)) for _ in range(2)]
    confidences = np.full((requests, 7), 0.75)
    state = build.state(0, requests)
    for rank, manager in enumerate(ranks):
        mine = confidences.copy()
        if rank and requests:
            mine[0, 2] -= 1e-3
        manager.publish(0, state.slots, state.generations, build.logits(mine))
    first = ranks[0].plan(state)
    second = ranks[1].apply(state, ranks[0].export(first))
    assert (second.budget, second.tier, second.digest) == (first.budget, first.tier, first.digest)
    sizes = []
    for manager, plan in zip(ranks, (first, second), strict=True):
        tensor = torch.full((requests,), 7, dtype=torch.int32)
        assignment = manager.assign(plan, tensor, tensor, plan.tier if requests else 0)
        sizes.append((int(assignment.query_start_loc[-1]), len(assignment.token_request)))
    assert sizes[0] == sizes[1] == (first.tokens, first.tier if requests else 0)
