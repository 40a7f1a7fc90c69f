"""The device relay's ring, driven by a queue whose events fire when the test says so."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from adaverify_contracts import CapabilityError, Limits, PlanError
from adaverify_verification.relay import CudaRelay, make_relay

LIMITS = Limits(3, 2, 128, 16)
TORN = -99.0


class LateQueue:
    """Copies when fired and not before; until then, and while overwritten, the host buffer is torn."""

    def __init__(self, depth: int) -> None:
        self.buffers = np.full((depth + 1, LIMITS.max_requests, LIMITS.draft_tokens), TORN, np.float32)
        self.enqueued: dict[int, torch.Tensor] = {}
        self.pending: dict[int, torch.Tensor] = {}
        self.copies = 0

    def copy(self, index: int, confidences: torch.Tensor) -> None:
        assert index not in self.pending, "an entry was overwritten before its event fired"
        # Stream order: later changes of the caller's tensor come after the copy.
        self.enqueued[index] = confidences.clone()
        self.buffers[index] = TORN
        self.copies += 1

    def send(self, confidences: torch.Tensor, entry: torch.Tensor) -> None:
        self.copy(int(entry), confidences)

    def record(self, index: int) -> None:
        self.pending[index] = self.enqueued.pop(index)

    def fired(self, index: int) -> bool:
        return index not in self.pending

    def host(self, index: int) -> np.ndarray:
        assert index not in self.pending, "an entry was read before its event fired"
        return self.buffers[index]

    def fire(self, index: int) -> None:
        values = self.pending.pop(index)
        self.buffers[index, : len(values)] = values.numpy()


def make(depth: int = 4) -> tuple[CudaRelay, LateQueue]:
    queue = LateQueue(depth)
    return CudaRelay(LIMITS, "cpu", depth, queue=queue), queue


def publish(relay: CudaRelay, step: int) -> None:
    relay.publish(step, np.array([step, 1]), np.array([step + 1000, 2]), torch.full((2, 2), float(step)))


def test_unfired_is_invisible():
    """A publication is readable only once its event has fired."""
    relay, queue = make()
    publish(relay, 1)
    assert relay.latest() is None
    queue.fire(0)
    assert relay.latest().step == 1 and (relay.latest().confidences == 1.0).all()


def test_out_of_order_events():
    """A newer step that fired first is the latest; the older one, fired late, does not replace it."""
    relay, queue = make()
    for step in (1, 2, 3):
        publish(relay, step)
    queue.fire(1)
    assert relay.latest().step == 2
    queue.fire(0)
    assert relay.latest().step == 2 and relay.latest(at_most=1).step == 1
    queue.fire(2)
    assert relay.latest().step == 3


def test_full_ring_drops_and_counts():
    """When every entry is under way the publication is dropped, counted, and nothing is overwritten."""
    relay, queue = make(depth=3)
    for step in range(5):
        publish(relay, step)
    assert (relay.dropped, queue.copies) == (2, 3)
    queue.fire(2)
    assert relay.latest().step == 2


def test_stalled_device_leaves_the_last_snapshot():
    """The newest arrived entry is never given up for a copy that may not arrive for long."""
    relay, queue = make(depth=2)
    publish(relay, 0)
    queue.fire(0)
    for step in (1, 2, 3):
        publish(relay, step)
    assert relay.latest().step == 0 and relay.dropped == 2
    queue.fire(1)
    publish(relay, 4)
    assert relay.latest().step == 1 and relay.dropped == 2


def test_close_with_copies_under_way():
    """After close nothing old becomes readable, and an entry still under way is not reused early."""
    relay, queue = make(depth=2)
    publish(relay, 0)
    relay.close()
    queue.fire(0)
    assert relay.latest() is None
    publish(relay, 1)
    publish(relay, 2)
    queue.fire(0)
    assert relay.latest().step in (1, 2)


def test_begin_send_launched_is_a_publication():
    """A step taken apart is visible when its event has fired, with the rows of real requests only."""
    relay, queue = make()
    index = relay.begin(4, np.array([2, 0]), np.array([7, 8]))
    assert relay.latest() is None
    relay.send(torch.full((3, 2), 0.5), torch.tensor([index], dtype=torch.int32))
    assert relay.latest() is None, "sent is not arrived: the event was not recorded for this step"
    relay.launched(index)
    assert relay.latest() is None
    queue.fire(index)
    found = relay.latest()
    assert (found.step, found.slots.tolist(), found.generations.tolist()) == (4, [2, 0], [7, 8])
    assert found.confidences.tolist() == [[0.5, 0.5]] * 2


def test_a_dropped_step_sends_to_the_bin():
    """A graph writes somewhere in any case; with the ring full that is an entry nobody reads."""
    relay, queue = make(depth=2)
    for step in range(2):
        publish(relay, step)
    assert relay.begin(2, np.arange(2), np.arange(2)) is None and relay.dropped == 1
    relay.send(torch.ones(2, 2), torch.tensor([relay.bin], dtype=torch.int32))
    for index in (0, 1):
        queue.fire(index)
    assert relay.latest().step == 1 and (relay.latest().confidences == 1.0).all()


def test_a_step_begun_and_never_launched_is_given_up():
    """A replay that failed leaves no entry locked, and its event of an older copy makes nothing readable."""
    relay, queue = make(depth=2)
    publish(relay, 0)
    queue.fire(0)
    assert relay.begin(1, np.arange(2), np.arange(2)) == 1
    assert relay.latest().step == 0
    publish(relay, 2)
    assert (relay.dropped, list(queue.pending)) == (1, [1])
    queue.fire(1)
    assert relay.latest().step == 2
    with pytest.raises(PlanError, match="not begun"):
        relay.launched(1)


def test_close_between_begin_and_launched():
    """The entry stays out of use until it has arrived, and what arrives is not readable."""
    relay, queue = make(depth=2)
    index = relay.begin(0, np.arange(2), np.arange(2))
    relay.close()
    relay.send(torch.ones(2, 2), torch.tensor([index], dtype=torch.int32))
    relay.launched(index)
    queue.fire(index)
    assert relay.latest() is None
    publish(relay, 1)
    (taken,) = queue.pending
    queue.fire(taken)
    assert relay.latest().step == 1
    publish(relay, 2)
    (taken,) = queue.pending
    queue.fire(taken)
    assert relay.latest().step == 2 and relay.dropped == 0


def test_only_what_could_be_the_answer_is_asked():
    """An event costs microseconds behind a full queue: what is newer than asked for, or older than what is
    known to have arrived, is none of the reader's business."""
    relay, queue = make()
    asked = []
    fired, queue.fired = queue.fired, lambda index: asked.append(index) or fired(index)
    for step in (0, 1, 2):
        publish(relay, step)
        if step:
            queue.fire(step - 1)
            assert relay.latest(at_most=step - 1).step == step - 1
    assert asked == [0, 1]
    assert relay.latest(at_most=1) is relay.latest(at_most=1) and asked == [0, 1]


def test_a_snapshot_that_is_read_twice_is_one_that_nobody_can_change():
    relay, queue = make()
    publish(relay, 1)
    queue.fire(0)
    found = relay.latest()
    assert found is relay.latest()
    for values in (found.slots, found.generations, found.confidences):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 3


@hypothesis.given(
    st.integers(2, 5),
    st.lists(st.one_of(st.sampled_from(["publish", "abandon"]), st.integers(0, 4)), min_size=1, max_size=60),
)
@hypothesis.settings(max_examples=150, deadline=None)
def test_ring_against_a_list_model(depth, actions):
    """Any order of publications and events: never torn, never mixed up, and newest arrived wins."""
    relay, queue = make(depth)
    step, owner, arrived, begun = 0, {}, [], False
    for action in actions:
        before, copies = relay.dropped, queue.copies
        if action == "publish":
            publish(relay, step)
            taken = queue.copies - copies
            assert taken + relay.dropped - before == 1 + begun
            begun = False
            if taken:
                index = next(i for i in queue.pending if owner.get(i) is None)
                owner[index] = step
            else:
                # Dropped only when at most one entry is not under way.
                assert len(queue.pending) >= depth - 1
            step += 1
        elif action == "abandon":
            taken = relay.begin(step, np.array([step, 1]), np.array([step, 2])) is not None
            assert relay.dropped - before == begun + (not taken)
            begun = taken
            step += 1
        elif action in queue.pending:
            queue.fire(action)
            arrived.append(owner.pop(action))
        found = relay.latest()
        assert (found.step if found else None) == (max(arrived) if arrived else None)
        if found:
            assert found.slots.tolist() == [found.step, 1]
            assert found.generations.tolist() == [found.step + 1000, 2]
            assert (found.confidences == found.step).all()


def test_without_an_accelerator_it_says_so():
    """On a machine without one the relay names the device and the remedy."""
    if torch.cuda.is_available():
        pytest.skip("this machine has an accelerator")
    with pytest.raises(CapabilityError, match="make_relay"):
        CudaRelay(LIMITS, "cpu")
    with pytest.raises(CapabilityError, match="cuda"):
        make_relay(LIMITS, "cuda")


def on_the_accelerator(test):
    """Mark a test that needs real streams."""
    missing = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
    return pytest.mark.gpu(missing(test))


@on_the_accelerator
def test_on_the_accelerator(refusing_waits):
    """Real streams: no leak of later changes, values arrive."""
    relay = make_relay(LIMITS, "cuda")
    confidences = torch.full((2, 2), 0.25, device="cuda")
    torch.cuda.synchronize()
    with refusing_waits():
        relay.publish(1, np.arange(2), np.arange(2), confidences)
        confidences.fill_(0.75)
        relay.latest()
    torch.cuda.synchronize()
    assert (relay.latest().confidences == 0.25).all()


@on_the_accelerator
def test_a_hundred_steps_wait_for_nothing(refusing_waits):
    """Publish and latest behind a full queue: no synchronisation, and the queue is still full afterwards."""
    relay = make_relay(LIMITS, "cuda")
    confidences = torch.full((2, 2), 0.5, device="cuda")
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)
    with refusing_waits():
        for step in range(100):
            relay.publish(step, np.arange(2), np.arange(2), confidences)
            relay.latest(at_most=step - 1)
    assert not torch.cuda.current_stream().query() and relay.dropped == 96
    torch.cuda.synchronize()
    assert relay.latest().step == 3


@on_the_accelerator
def test_a_captured_send_writes_the_entry_of_each_replay():
    """One graph, an entry a step: values go from the kernel into pinned memory; dropped steps to the bin."""
    relay = make_relay(LIMITS, "cuda", depth=2)
    confidences = torch.zeros(3, 2, device="cuda")
    entry = torch.tensor([relay.bin], dtype=torch.int32, device="cuda")
    relay.send(confidences, entry)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        relay.send(confidences, entry)
    for step in range(6):
        index = relay.begin(step, np.arange(2), np.full(2, step))
        confidences.fill_(float(step))
        entry.fill_(relay.bin if index is None else index)
        graph.replay()
        if index is not None:
            relay.launched(index)
        torch.cuda.synchronize()
        found = relay.latest()
        assert found.step == step and (found.confidences == step).all() and found.confidences.shape == (2, 2)
    assert relay.dropped == 0
