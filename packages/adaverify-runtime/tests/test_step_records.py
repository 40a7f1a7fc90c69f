"""What a step leaves behind: observers, records, and every fallback by name."""

from dataclasses import replace

import numpy as np
import torch

from adaverify_contracts import (
    PlanState,
    hookimpl,
)
from adaverify_runtime import (
    PluginSettings,
)


def test_no_hook_is_called_on_the_decode_path(kit, verifier, real_plugins, every_hook):
    """Hooks are resolved once at start; observers are called by the drain, in step order."""
    calls = []
    checker = verifier(plugins=real_plugins(every_hook(calls)), cost_table=kit.cost, settings=kit.settings)
    at_start = list(calls)
    assert len(at_start) == 7
    for step in range(1, 21):
        state = kit.state(step, [3, 3])
        checker.publish(step, state.slots, state.generations, torch.zeros(2, 3))
        plan = checker.plan(state)
        staged = checker.stage(plan, *kit.tensors([3, 3], [4, 4]), kit.table())
        checker.observe(kit.outcome(state, plan, staged), plan)
        assert calls == at_start
    assert checker.drain() == 20
    assert calls == at_start + list(range(1, 21))


def test_a_full_queue_calls_observers_from_observe_and_a_broken_one_is_reported(kit, verifier, real_plugins):
    """The queue is bounded; an observer that raises costs the engine nothing."""

    class Broken:
        @hookimpl
        def adaverify_step_recorded(self, record):
            raise OSError("disk full")

    settings = replace(kit.settings, plugins=PluginSettings(observer_queue=2))
    checker = verifier(plugins=real_plugins(Broken()), settings=settings)
    for step in (1, 2):
        state = kit.state(step, [3])
        plan = checker.plan(state)
        staged = checker.stage(plan, *kit.tensors([3], [4]), kit.table())
        checker.observe(kit.outcome(state, plan, staged), plan)
    assert checker.counters["observer-disabled:extra-0"] == 1
    assert [(item.plugin, item.step) for item in checker.disabled_observers] == [("extra-0", 1)]


def test_without_a_cost_table_everything_is_verified_and_said(kit, verifier):
    """sglang #35413: no information is a named state, in the report and in every record."""
    checker = verifier(settings=kit.settings, mode="adaptive")
    assert any(note.startswith("unpriced: everything is verified") for note in checker.report.notes)
    state = kit.state(1, [3, 3])
    plan = checker.plan(state)
    staged = checker.stage(plan, *kit.tensors([3, 3], [4, 4]), kit.table())
    record = checker.observe(kit.outcome(state, plan, staged), plan)
    assert (plan.state, plan.budget, staged.strategy) == (PlanState.UNPRICED, 6, "uniform")
    assert record.state == "unpriced"
    assert "unpriced" in record.fallbacks
    assert checker.counters["unpriced"] == 1


def test_a_step_that_was_not_executed_as_planned_is_an_error_count(kit, verifier):
    """sglang #30204: planned and verified are both reported, a difference is counted."""
    checker = verifier(mode="fixed")
    state = kit.state(1, [3, 3])
    plan = checker.plan(state)
    staged = checker.stage(plan, *kit.tensors([3, 3], [4, 4]), kit.table())
    outcome = kit.outcome(state, plan, staged)
    short = replace(outcome, admitted=np.array([3, 1]), accepted=np.array([0, 0]), emitted=2)
    record = checker.observe(short, plan)
    assert (record.planned, record.verified) == (6, 4)
    assert "verified-not-planned" in record.fallbacks
    assert checker.counters["verified-not-planned"] == 1
