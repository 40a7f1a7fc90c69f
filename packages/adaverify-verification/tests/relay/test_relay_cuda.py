"""The device relay's ring, driven by a queue whose events fire when the test says so."""

from __future__ import annotations

from time import perf_counter

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from adaverify_contracts import CapabilityError, Limits, PlanError
from adaverify_verification.relay import CudaRelay, make_relay
from adaverify_verification.relay.cuda import StreamQueue

LIMITS = Limits(3, 2, 128, 16)
TORN = -99.0


class LateQueue:
    """Copies when fired and not before; until then, and while overwritten, the host buffer is torn."""

    def __init__(self, depth: int) -> None:
        self.buffers = np.full((depth + 1, LIMITS.max_requests, LIMITS.draft_tokens), TORN, np.float32)
        self.enqueued: dict[int, torch.Tensor] = {}
        self.pending: dict[int, torch.Tensor] = {}
        self.copies = 0
        self.marked: dict[int, int] = {}

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

    def blank(self, index: int, rows: int) -> bool:
        assert index not in self.pending, "an entry was marked while it was being written"
        self.marked[index] = rows * LIMITS.draft_tokens
        return True

    def written(self, index: int, rows: int) -> bool:
        return self.marked[index] == 0

    def host(self, index: int) -> np.ndarray:
        there = index not in self.pending or self.marked.get(index, 1) == 0
        assert there, "an entry was read before it was there"
        return self.buffers[index]

    def write(self, index: int, values: int) -> None:
        """Let the device store so many more of an entry's values, while the step goes on."""
        self.marked[index] = max(0, self.marked[index] - values)
        if self.marked[index] == 0:
            values = (self.pending if index in self.pending else self.enqueued)[index]
            self.buffers[index, : len(values)] = values.numpy()

    def fire(self, index: int) -> None:
        values = self.pending.pop(index)
        self.buffers[index, : len(values)] = values.numpy()
        self.marked[index] = 0


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


def send(relay: CudaRelay, step: int, rows: int = 2) -> int | None:
    """Publish a step as a replay does."""
    index = relay.begin(step, np.array([step, 1])[:rows], np.array([step + 1000, 2])[:rows])
    entry = torch.tensor([relay.bin if index is None else index], dtype=torch.int32)
    relay.send(torch.full((3, 2), float(step)), entry)
    if index is not None:
        relay.launched(index)
    return index


def test_a_step_under_way_is_read_when_all_it_sent_is_there():
    """The values of a graph's begin are read while the graph runs: not while one of them is missing."""
    relay, queue = make()
    index = send(relay, 1)
    queue.write(index, 3)
    assert relay.latest() is None
    queue.write(index, 1)
    assert relay.latest().step == 1 and (relay.latest().confidences == 1.0).all()
    assert relay.latest(at_most=0) is None
    queue.fire(index)
    assert relay.latest().step == 1


def test_an_entry_read_early_is_not_written_before_its_event():
    """Padding rows may still be on their way: what was read is reused only when the step has ended."""
    relay, queue = make(depth=2)
    first = send(relay, 1, rows=1)
    queue.write(first, 2)
    assert relay.latest().step == 1
    second = send(relay, 2)
    assert send(relay, 3) is None and relay.dropped == 1
    queue.fire(first)
    queue.write(second, 4)
    assert relay.latest().step == 2
    assert send(relay, 4) == first, "the reader has the one behind it"
    queue.fire(first)
    assert send(relay, 5) is None, "what was read last is not given up, whatever else has arrived"


def test_values_that_nobody_asked_for_are_not_taken_for_a_later_step():
    """What a first replay may write still into an entry begun twice is not this step's."""
    relay, queue = make()
    index = relay.begin(1, np.arange(2), np.arange(2))
    assert send(relay, 2) == index and relay.dropped == 1
    queue.marked[index] = 0
    assert relay.latest() is None
    queue.fire(index)
    assert relay.latest().step == 2


def test_nothing_written_is_read_after_close():
    """What a step under way sends after close stays unread."""
    relay, queue = make()
    index = send(relay, 1)
    relay.close()
    queue.write(index, 4)
    assert relay.latest() is None
    queue.fire(index)
    assert relay.latest() is None


def test_marks_are_no_values():
    """Real buffers, no device: each value by itself is missing until any confidence is there."""
    pinned = torch.zeros(2, 3, 2)
    queue = StreamQueue.__new__(StreamQueue)
    queue._bits = [entry.reshape(-1).view(np.uint32) for entry in pinned.numpy()]
    queue._width = 2
    queue.blank(1, 2)
    assert np.isnan(pinned[1, :2].numpy()).all() and not pinned[0].any() and not pinned[1, 2].any()
    for row, column, value in ((0, 0, 0.5), (1, 1, float("nan")), (0, 1, 0.0)):
        pinned[1, row, column] = value
        assert not queue.written(1, 2)
    pinned[1, 1, 0] = 1.0
    assert queue.written(1, 2)


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


class Device:
    """Runs what a relay was sent in order: a step's values are there first, then the step has ended."""

    def __init__(self, depth: int) -> None:
        self.relay, self.queue = make(depth)
        self.running: list[int] = []

    def send(self, step: int) -> None:
        index = send(self.relay, step)
        if index is not None:
            self.running.append(index)

    def go_on(self, action: str) -> None:
        if self.running and action == "write":
            self.queue.write(self.running[0], 4)
        elif self.running and action == "end":
            self.queue.fire(self.running.pop(0))


@hypothesis.given(
    st.integers(2, 5), st.lists(st.sampled_from(["step", "write", "end", "ask"]), min_size=1, max_size=60)
)
@hypothesis.settings(max_examples=200, deadline=None)
def test_whoever_asks_more_often_reads_nothing_older(depth, actions):
    """A host that asks between two plans too: its plans read the same confidences, or newer ones."""
    often, seldom, step = Device(depth), Device(depth), 0
    for action in actions:
        for device in (often, seldom):
            device.go_on(action)
        if action == "ask":
            often.relay.latest()
        elif action == "step":
            found, plain = (device.relay.latest(at_most=step - 1) for device in (often, seldom))
            assert plain is None or found.step >= plain.step
            for device in (often, seldom):
                device.send(step)
            step += 1
    assert often.relay.dropped <= seldom.relay.dropped


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
def test_a_captured_send_is_read_while_its_step_runs():
    """The rest of the graph takes half a second; what its begin sent is there long before."""
    relay = make_relay(LIMITS, "cuda", depth=2)
    confidences = torch.full((2, 2), 0.5, device="cuda")
    entry = torch.tensor([relay.bin], dtype=torch.int32, device="cuda")
    relay.send(confidences, entry)
    index = relay.begin(1, np.arange(2), np.arange(2))
    entry.fill_(index)
    torch.cuda.synchronize()
    relay.send(confidences, entry)
    torch.cuda._sleep(1_000_000_000)
    relay.launched(index)
    begun = perf_counter()
    while relay.latest() is None and perf_counter() - begun < 5.0:
        pass
    assert not torch.cuda.current_stream().query(), "nothing was read before the step had ended"
    assert (relay.latest().confidences == 0.5).all()
    torch.cuda.synchronize()


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
