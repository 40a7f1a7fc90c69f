"""A device runtime in plain Python with the rules that captures live by."""

from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace

import pytest


class CaptureInvalidatedError(RuntimeError):
    """What the driver says when something forbidden happened during a capture."""


class FakeStream:
    """A stream; waiting on another during its own capture for outside work breaks the capture."""

    def __init__(self, cuda, name):
        self.cuda, self.name = cuda, name

    def wait_stream(self, other):
        self.cuda.log.append(("wait", self.name, other.name))


class FakeGraph:
    """Records launches between begin and end; replays them."""

    def __init__(self, cuda):
        self.cuda, self.ops, self.state, self.pool, self.mode = cuda, [], "new", None, None

    def capture_begin(self, pool, capture_error_mode):
        cuda = self.cuda
        assert cuda.capturing is None, "captures do not nest"
        assert cuda.current_stream().name != "default", "the default stream cannot be captured"
        if pool in cuda.recording_pools:
            raise RuntimeError("beginAllocateToPool: already recording to this pool")
        cuda.recording_pools.add(pool)
        cuda.capturing, cuda.broken = self, False
        self.state, self.pool, self.mode = "capturing", pool, capture_error_mode

    def capture_end(self):
        cuda = self.cuda
        cuda.capturing = None
        if cuda.broken:
            # As in torch: the driver's error is raised before the allocator leaves the pool.
            self.state = "invalid"
            raise CaptureInvalidatedError("operation failed due to a previous error during capture")
        assert cuda.current_stream().name != "default"
        cuda.recording_pools.discard(self.pool)
        self.state = "ready"

    def reset(self):
        self.state = "reset"

    def replay(self):
        assert self.state == "ready", self.state
        for op in self.ops:
            op()


class FakeCuda:
    """The functions of ``torch.cuda`` that captures need."""

    def __init__(self, total=1 << 30):
        self.total = total
        self.default = FakeStream(self, "default")
        self._current = self.default
        self._numbers = count(1)
        self.log = []
        self.capturing = None
        self.broken = False
        self.recording_pools = set()
        self.pool_used = {}
        self.live = 0
        self.peak = 0
        self.streams = []
        self.graphs = []

    # streams and devices
    @contextmanager
    def device(self, device):
        self.log.append(("device", str(device)))
        yield

    def Stream(self):
        self.streams.append(FakeStream(self, f"side{next(self._numbers)}"))
        return self.streams[-1]

    def current_stream(self):
        return self._current

    def set_stream(self, stream):
        self._current = stream

    def synchronize(self):
        if self.capturing is not None:
            self.broken = True
            raise CaptureInvalidatedError("operation not permitted when stream is capturing")

    # graphs
    def CUDAGraph(self):
        self.graphs.append(FakeGraph(self))
        return self.graphs[-1]

    def graph_pool_handle(self):
        return ("pool", next(self._numbers))

    # memory
    def empty_cache(self):
        assert self.capturing is None
        self.log.append(("empty_cache",))

    def reset_peak_memory_stats(self):
        self.peak = self.live

    def memory_allocated(self):
        return self.live

    def max_memory_allocated(self):
        return self.peak

    def mem_get_info(self):
        return self.total - self.live - sum(self.pool_used.values()), self.total

    # what a step does
    def scratch(self, size):
        """Allocate and free ``size`` bytes; inside a capture the pool keeps them."""
        if self.capturing is not None:
            pool = self.capturing.pool
            grown = max(self.pool_used.get(pool, 0), size)
            if grown > self.total:
                self.broken = True
                raise MemoryError(f"out of memory: {size} bytes")
            self.pool_used[pool] = grown
        else:
            self.peak = max(self.peak, self.live + size)

    def launch(self, op):
        """Run ``op`` now, or record it."""
        if self.capturing is not None:
            self.capturing.ops.append(op)
        else:
            op()

    def wait_outside_event(self):
        """Wait on an event that was recorded outside the capture."""
        if self.capturing is not None:
            self.broken = True
            raise CaptureInvalidatedError("dependency created on uncaptured work in another stream")


@pytest.fixture
def fake_cuda():
    """Return a fresh runtime."""
    return FakeCuda()


@pytest.fixture
def limits():
    """Return limits of 8 requests, K = 3."""
    from adaverify_contracts import Limits

    return Limits(max_requests=8, draft_tokens=3, max_model_len=100, page_size=16)


@pytest.fixture
def counting_step():
    """Return a step maker whose steps write how often they ran and return a fixed object."""

    def make(key):
        state = SimpleNamespace(runs=0)

        def run():
            state.runs += 1
            return (key.tokens, state)

        return run

    return make
