"""A decode step taken apart for a graph does what publish and assign do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adaverify_contracts import LayoutError, PlanError, PlanState, Seen, SignalDescriptor
from adaverify_verification.containment import PluginFault
from adaverify_verification.signals import DrafterSignal


def serve(build, captured, steps=6, requests=3):
    """Serve the same steps either way; the captured one works on static tensors with a padding request."""
    table = build.table(lambda n: 1e-3 + 4e-4 * max(n - 8, 0), [requests], 64)
    manager = build.manager(table, requests=8, margin=0.0, hysteresis=0.0)
    padded = requests + 1
    scores, slots = torch.zeros(padded, 7), torch.full((padded,), -1)
    entry, budget = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    scheduled = torch.tensor([7] * requests + [-1], dtype=torch.int32)
    lens = torch.tensor([128] * requests + [0], dtype=torch.int32)
    draw, found = np.random.default_rng(3), []
    for step in range(steps):
        state = build.state(step, requests)
        fresh = build.logits(draw.random((requests, 7)))
        if captured:
            entry.fill_(manager.begin_publish(step, state.slots, state.generations))
            scores[:requests], slots[:requests] = fresh, torch.from_numpy(state.slots)
            manager.capture_live(scores, slots, entry)
            manager.end_publish()
        else:
            manager.publish(step, state.slots, state.generations, fresh)
        plan = manager.plan(state)
        if captured:
            budget.fill_(plan.budget)
            assignment = manager.assign_captured(padded, 32, scheduled, lens, budget)
        else:
            assignment = manager.assign(plan, scheduled, lens, 32)
        names = ("admitted", "query_start_loc", "seq_lens", "token_request", "token_offset")
        tensors = {name: getattr(assignment, name).tolist() for name in names}
        found.append((plan.budget, plan.lag, plan.digest, tensors))
    return found


def test_a_step_taken_apart_is_the_same_step(build):
    """Budgets, lags, digests and every boundary, step by step; some steps trim."""
    whole = serve(build, captured=False)
    assert serve(build, captured=True) == whole
    assert any(0 < budget < 21 for budget, *_ in whole)


def test_an_eager_assign_follows_a_captured_publication(build):
    """A step whose graph was missed after all ranks by the confidences that the replay left."""
    manager = build.manager(build.table(lambda n: 1e-3 * n, [2], 16), requests=8)
    state = build.state(0, 2)
    entry = torch.tensor([manager.begin_publish(0, state.slots, state.generations)], dtype=torch.int32)
    live = manager.capture_live(build.logits([[0.9] * 7, [0.5] * 7]), torch.arange(2), entry)
    manager.end_publish()
    ranked, own = manager._live.ranking(state, 2)
    assert own and torch.equal(ranked, live) and live[0, 0] > 0.89


class Moody(DrafterSignal):
    """Raises in the method named."""

    fails = ""

    def confidences(self, scores, slots):
        if self.fails == "confidences":
            raise RuntimeError("cannot be captured")
        return super().confidences(scores, slots)

    def forget(self, slot):
        if self.fails == "forget":
            raise RuntimeError("forgot how to forget")


MOODY = SignalDescriptor("moody", Seen.HISTORY, True, Moody)


def test_fault_a_signal_that_raises_in_a_capture_is_an_exception(build):
    """The graph cache isolates it; nothing was sent."""
    manager = build.manager(build.table(lambda n: 1e-3 * n, [2], 16), signal=MOODY)
    manager.signal.fails = "confidences"
    entry = torch.tensor([manager.begin_publish(0, np.arange(2), np.zeros(2, np.int64))], dtype=torch.int32)
    with pytest.raises(PluginFault, match="cannot be captured"):
        manager.capture_live(torch.zeros(2, 7), torch.arange(2), entry)
    assert manager._relay.latest() is None


def test_fault_a_signal_that_cannot_forget_publishes_nothing(build):
    """The replay writes to the bin, and the step verifies everything with the reason."""
    manager = build.manager(build.table(lambda n: 1e-3 * n, [2], 16), signal=MOODY)
    for step, generation in enumerate((0, 1)):
        manager.signal.fails = "forget" if step else ""
        state = build.state(step, 2, generations=np.full(2, generation))
        index = manager.begin_publish(step, state.slots, state.generations)
        entry = torch.tensor([index], dtype=torch.int32)
        manager.capture_live(torch.zeros(2, 7), torch.arange(2), entry)
        manager.end_publish()
        plan = manager.plan(state)
    assert index == manager._relay.bin and manager._relay.latest().step == 0
    assert plan.state is PlanState.FULL and "forgot how to forget" in plan.reason
    assert manager.counters["signal-raised"] == 1


def test_begin_and_end_come_in_pairs(build):
    """A failed replay is not ended, and the next step does not suffer; an end without a begin is an error."""
    manager = build.manager(build.table(lambda n: 1e-3 * n, [2], 16))
    with pytest.raises(PlanError, match="not begun"):
        manager.end_publish()
    manager.begin_publish(0, np.arange(2), np.zeros(2, np.int64))
    manager.publish(1, np.arange(2), np.zeros(2, np.int64), torch.zeros(2, 7))
    with pytest.raises(PlanError, match="not begun"):
        manager.end_publish()
    assert manager._relay.latest().step == 1 and manager.counters["relay-dropped"] == 1
    with pytest.raises(LayoutError, match="arrived"):
        manager.begin_publish(2, np.arange(2), np.zeros(3, np.int64))


def test_slots_reach_the_signal_when_they_change(build):
    """The upload is left out only while the device holds the same slots."""
    seen = []

    class Recording(DrafterSignal):
        def confidences(self, scores, slots):
            seen.append(slots.tolist())
            return super().confidences(scores, slots)

    signal = SignalDescriptor("recording", Seen.HISTORY, True, Recording)
    manager = build.manager(build.table(lambda n: 1e-3 * n, [2], 16), signal=signal)
    batches = [[0, 1], [0, 1], [0], [3, 1, 2], [0, 1], [0, 1, 2]]
    for step, slots in enumerate(batches):
        rows = len(slots)
        manager.publish(step, np.array(slots), np.zeros(rows, np.int64), torch.zeros(rows, 7))
    assert seen == batches
