"""Captured decode steps: what is replayed, what is missed, and what each size really holds."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from adaverify_contracts import GraphError, GraphKey, hookimpl
from adaverify_runtime import (
    GraphSettings,
    PlannerSettings,
    Settings,
)


def test_replay_without_graphs_says_so_by_returning_none(kit, verifier):
    """The eager backend captures nothing; the report says it."""
    checker = verifier(mode="fixed")
    assert checker.capture(lambda staged, key: None) is None
    plan = checker.plan(kit.state(1, [3]))
    assert checker.replay(plan, *kit.tensors([3], [4]), kit.table()) is None
    assert any("graphs: NEVER" in note and "does not capture" in note for note in checker.report.notes)


def test_launch_without_a_captured_whole_step_is_refused(kit, verifier):
    """Nothing would have drafted or assigned inside the graph."""
    checker = verifier(mode="fixed")
    state = kit.state(1, [3])
    with pytest.raises(GraphError, match="captured the other way"):
        checker.launch(checker.plan(state), state)


class Film:
    """A graph backend for CPUs: it keeps the step and plays it, and can run out of room at one size."""

    def __init__(self, device, fail_at=None):
        self.fail_at = fail_at

    def estimate(self, run):
        return 0

    def capture(self, run):
        if run() == self.fail_at:
            raise MemoryError("no room")
        return SimpleNamespace(replay=run)

    def pool_bytes(self):
        return 0


@pytest.fixture
def film(make):
    """A plugin that registers the film backend as one that captures."""

    def plugin(fail_at=None):
        class Plugin:
            @hookimpl
            def adaverify_register_graph_backends(self):
                backend = replace(
                    make.backend("film"),
                    captures=True,
                    priority=99,
                    factory=lambda device: Film(device, fail_at),
                )
                return (backend,)

        return Plugin()

    return plugin


def test_a_captured_step_serves_other_lengths_of_its_size(kit, verifier, real_plugins, film):
    """What the graph replays equals what staging builds, for ragged lengths it was not captured with."""
    checker = verifier(plugins=real_plugins(film()), cost_table=kit.cost, settings=kit.settings)
    seen = []

    def step(staged, key):
        seen.append([staged.rows.row_lens.flatten().clone(), staged.rows.block_table.clone()])
        return key.tokens

    report = checker.capture(step)
    assert report.complete
    assert [key.tokens for key in report.captured] == [16, 12, 8, 4]

    for number, hopeful in enumerate(([0, 2], [1, 2], [0], [0, 1, 2]), start=1):
        scores = torch.full((3, 3), kit.hopeless)
        scores[hopeful] = kit.sure
        state = kit.state(number, [3, 3, 3])
        checker.publish(number, state.slots, state.generations, scores)
        plan = checker.plan(state)
        assert plan.tier in (4, 8, 12)
        inputs = (*kit.tensors([3, 3, 3], [7, 6, 8]), kit.table())
        replayed = checker.replay(plan, *inputs)
        assert replayed.result == replayed.key.tokens == plan.tier
        lens, _ = seen[-1]
        key = replayed.key
        staged = checker.stage(plan, *inputs, padded_requests=key.requests, padded_tokens=key.tokens)
        if staged.strategy == "reference":
            assert torch.equal(lens, staged.rows.row_lens.flatten())
            assert int((lens > 0).sum()) == plan.tokens
        record = checker.observe(kit.outcome(state, plan, staged), plan)
        assert record.fallbacks == ()
    assert checker.counters["graph replayed"] == 4


def test_a_whole_step_is_launched_and_never_replayed(kit, verifier, real_plugins, film):
    """Its graph assigns by itself: an assignment launched before it would be overwritten."""
    checker = verifier(mode="fixed", plugins=real_plugins(film()))
    inputs = checker.inputs

    def prologue(key):
        inputs.scheduled[: key.requests] = torch.where(inputs.row_slot[: key.requests] < 0, -1, 3)
        inputs.kv_lens[: key.requests] = torch.where(inputs.row_slot[: key.requests] < 0, 0, 4)

    assert checker.capture(lambda staged, key: staged.assignment.admitted, prologue=prologue).captured
    state = kit.state(1, [3])
    plan = checker.plan(state)
    launched = checker.launch(plan, state)
    assert launched.assignment.admitted.tolist()[:1] == [plan.budget]
    with pytest.raises(GraphError, match="captured the other way"):
        checker.replay(plan, *kit.tensors([3], [4]), kit.table())


def test_a_plan_without_drafts_runs_in_a_drafting_free_graph(kit, verifier, real_plugins, film):
    """Two families in one ladder's limits; neither serves the other's plans, and both are counted."""
    checker = verifier(plugins=real_plugins(film()), cost_table=kit.cost, settings=kit.settings)
    inputs, width = checker.inputs, kit.limits.table_width

    def prologue(key):
        padding = inputs.row_slot[: key.requests] < 0
        inputs.scheduled[: key.requests] = torch.where(padding, -1, key.max_query_len - 1)
        inputs.kv_lens[: key.requests] = torch.where(padding, 0, 4)

    report = checker.capture(lambda staged, key: key, prologue=prologue, bare=True)
    assert report.complete
    assert checker.tiers == (4, 8, 12, 16)
    assert checker.bare_tiers == (4,)
    for step, drafts in enumerate((3, 0, 3, 0, 0)):
        state = kit.state(step, [drafts] * 2)
        plan = checker.plan(state)
        launched = checker.launch(plan, state)
        assert launched.key.max_query_len == drafts + 1
        assert launched.result == launched.key
        assert int(launched.assignment.admitted[:2].sum()) == plan.budget
        assert launched.assignment.query_start_loc[2] == 2 + plan.budget
        if not drafts:
            assert launched.key == GraphKey(4, 4, 1, width)
            assert plan.tier == 4
    assert checker.counters["graph replayed"] == 5
    assert checker.counters["graph replayed: drafting-free"] == 3


def test_steps_in_pieces_have_no_drafting_free_graphs(kit, verifier, real_plugins, film):
    """Without a prologue the engine drafts before the replay, or does not: one family serves both."""
    checker = verifier(plugins=real_plugins(film()), cost_table=kit.cost, settings=kit.settings)
    assert checker.capture(lambda staged, key: key, bare=True).complete
    assert checker.bare_tiers == ()
    state = kit.state(1, [0, 0])
    plan = checker.plan(state)
    replayed = checker.replay(plan, *kit.tensors([0, 0], [4, 4]), kit.table())
    assert replayed.key.max_query_len == 4


def test_a_size_that_fails_is_named_and_the_plan_uses_the_rest(kit, verifier, real_plugins, film):
    """vllm-ascend #16761: one size fails, the others stay usable and are what is planned for."""
    checker = verifier(plugins=real_plugins(film(fail_at=8)), cost_table=kit.cost, settings=kit.settings)
    report = checker.capture(lambda staged, key: key.tokens)
    assert [item.key.tokens for item in report.failed] == [8]
    assert "no room" in report.failed[0].cause
    plan = checker.plan(kit.state(1, [1, 1, 1]))
    assert plan.tokens <= 12
    assert plan.tier in (4, 12)


def test_a_batch_with_a_prefill_chunk_never_enters_a_graph(kit, verifier, real_plugins, film):
    """vllm #50532: the miss is counted by its reason and the step is staged."""
    checker = verifier(plugins=real_plugins(film()), mode="fixed")
    checker.capture(lambda staged, key: key.tokens)
    plan = checker.plan(kit.state(1, [3], other_tokens=4))
    assert checker.replay(plan, *kit.tensors([3], [4]), kit.table()) is None
    assert checker.counters["graph missed: prefill"] == 1
    assert checker.stage(plan, *kit.tensors([3], [4]), kit.table()).strategy == "uniform"


def test_a_uniform_graph_mode_is_kept_and_serves_full_batches_only(kit, verifier, real_plugins, film):
    """vllm #56626: the mode that was asked for is the mode in force."""
    settings = Settings(
        graphs=GraphSettings(mode="uniform"), planner=PlannerSettings(signal="drafter", warmup_steps=0)
    )
    checker = verifier(plugins=real_plugins(film()), settings=settings, mode="fixed")
    assert "graphs: UNIFORM_BATCH, as requested" in checker.report.notes
    report = checker.capture(lambda staged, key: (staged.strategy, staged.rows.row_lens.tolist()))
    assert {(key.tokens, key.requests) for key in report.captured} == {(4, 1), (8, 2), (12, 3), (16, 4)}
    plan = checker.plan(kit.state(1, [3, 3]))
    replayed = checker.replay(plan, *kit.tensors([3, 3], [4, 8]), kit.table())
    assert replayed.result == ("uniform", [[5, 6, 7, 8], [9, 10, 11, 12]])
    ragged = checker.plan(kit.state(2, [3, 2]))
    assert checker.replay(ragged, *kit.tensors([3, 2], [4, 8]), kit.table()) is None


def test_a_host_may_prepare_at_any_time(kit, verifier):
    """Before anything was published, and after close, when the last steps are still to be read."""
    checker = verifier(mode="adaptive")
    assert not checker.prepare()
    state = kit.state(1, [3])
    checker.publish(1, state.slots, state.generations, torch.zeros(1, checker.limits.draft_tokens))
    assert checker.prepare() and not checker.prepare()
    checker.close()
    assert not checker.prepare()
