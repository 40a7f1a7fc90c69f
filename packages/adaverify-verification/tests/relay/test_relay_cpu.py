"""The host relay: what was published is readable at once, and nothing leaks between steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adaverify_contracts import LayoutError, Limits, LimitsError
from adaverify_verification.relay import CpuRelay, CudaRelay, Relay, make_relay

LIMITS = Limits(4, 2, 128, 16)


def publish(relay: Relay, step: int, requests: int = 2, value: float | None = None) -> torch.Tensor:
    confidences = torch.full((requests, 2), float(step) if value is None else value)
    relay.publish(step, np.arange(requests), np.full(requests, step + 100), confidences)
    return confidences


def test_nothing_published_is_nothing():
    """An empty relay has no snapshot, whatever step is asked for."""
    relay = CpuRelay(LIMITS)
    assert relay.latest() is None and relay.latest(at_most=10) is None


def test_latest_respects_the_lag():
    """``at_most`` selects the newest step that the reader may see."""
    relay = CpuRelay(LIMITS)
    for step in (5, 6, 7):
        publish(relay, step)
    assert [relay.latest(limit).step for limit in (None, 9, 7, 6, 5)] == [7, 7, 7, 6, 5]
    assert relay.latest(4) is None


def test_copies_at_publish():
    """Tensor, slots and generations may be rewritten in place right after publishing."""
    relay = CpuRelay(LIMITS)
    slots, generations, confidences = np.array([3, 1]), np.array([7, 8]), torch.full((2, 2), 0.5)
    relay.publish(1, slots, generations, confidences)
    slots[:], generations[:] = 0, 0
    confidences.fill_(9.0)
    found = relay.latest()
    assert found.slots.tolist() == [3, 1] and found.generations.tolist() == [7, 8]
    assert (found.confidences == 0.5).all() and found.confidences.dtype == np.float32


def test_a_snapshot_outlives_the_ring():
    """Later publications do not change a snapshot that is still held."""
    relay = CpuRelay(LIMITS, depth=2)
    publish(relay, 0)
    held = relay.latest()
    for step in range(1, 9):
        publish(relay, step)
    assert held.step == 0 and (held.confidences == 0.0).all() and held.generations.tolist() == [100, 100]
    assert relay.dropped == 0


def test_ring_keeps_the_last_publications():
    """Depth 3 holds exactly the last three steps."""
    relay = CpuRelay(LIMITS, depth=3)
    for step in range(10):
        publish(relay, step)
    assert [relay.latest(step) is not None for step in range(10)] == [False] * 7 + [True] * 3


def test_shrinking_batch_reads_only_its_rows():
    """A smaller batch never shows rows of the batch that held the entry before."""
    relay = CpuRelay(LIMITS, depth=2)
    for step, requests in enumerate((4, 4, 1, 0)):
        publish(relay, step, requests)
        assert relay.latest().confidences.shape == (requests, 2)
        assert (relay.latest().confidences == step).all()


def test_fault_recycled_slot_carries_its_generation():
    """The snapshot names the generation, so a slot's new holder is told apart (vllm #47930, #48459)."""
    relay = CpuRelay(LIMITS)
    relay.publish(1, np.array([2]), np.array([10]), torch.tensor([[0.9, 0.9]]))
    snapshot = relay.latest()
    now = {2: 11}
    assert [now[s] == g for s, g in zip(snapshot.slots, snapshot.generations, strict=True)] == [False]


def test_close_forgets():
    """After close nothing is readable; publishing again starts afresh."""
    relay = CpuRelay(LIMITS)
    publish(relay, 1)
    relay.close()
    assert relay.latest() is None
    publish(relay, 2)
    assert relay.latest().step == 2


@pytest.mark.parametrize(
    ("slots", "generations", "shape", "dtype"),
    [
        (2, 2, (2, 3), torch.float32),
        (2, 1, (2, 2), torch.float32),
        (2, 2, (3, 2), torch.float32),
        (5, 5, (5, 2), torch.float32),
        (2, 2, (2, 2), torch.bfloat16),
    ],
)
def test_misfits_are_refused(slots, generations, shape, dtype):
    """Wrong shapes and dtypes are errors that say what arrived."""
    with pytest.raises(LayoutError, match="arrived"):
        CpuRelay(LIMITS).publish(0, np.arange(slots), np.arange(generations), torch.zeros(shape, dtype=dtype))


def test_device_tensor_is_refused_by_the_host_relay():
    """Reading a device tensor would wait, so it is an error and not a copy."""
    with pytest.raises(LayoutError, match="meta"):
        CpuRelay(LIMITS).publish(0, np.arange(1), np.arange(1), torch.zeros(1, 2, device="meta"))


def test_depth_is_checked():
    """One entry could not be read while it is written."""
    with pytest.raises(LimitsError, match="at least 2"):
        CpuRelay(LIMITS, depth=1)


def test_make_relay_by_device():
    """A CPU gets the host relay; it satisfies the protocol, and zero draft tokens are ordinary."""
    relay = make_relay(Limits(2, 0, 8, 8), "cpu")
    assert isinstance(relay, CpuRelay) and isinstance(relay, Relay) and not isinstance(relay, CudaRelay)
    relay.publish(0, np.arange(2), np.arange(2), torch.zeros(2, 0))
    assert relay.latest().confidences.shape == (2, 0)
