"""The CUDA backend on a device: replays read new values, and a failed size leaves a working device."""

import pytest
import torch

from adaverify_contracts import CaptureError, GraphKey, Limits
from adaverify_graphs import BufferSet, CudaGraphBackend, GraphCache, choose_ladder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LIMITS = Limits(max_requests=8, draft_tokens=3, max_model_len=100, page_size=16)


def _cache(bytes_limit=None):
    buffers = BufferSet({"in": torch.zeros(32, device="cuda"), "out": torch.zeros(32, device="cuda")})
    return GraphCache(CudaGraphBackend("cuda"), LIMITS, buffers=buffers, bytes_limit=bytes_limit)


def _make(cache, broken=()):
    def make(key):
        source, target = cache.buffers["in"], cache.buffers["out"]

        def run():
            if key.tokens in broken:
                torch.cuda.synchronize()
            target[: key.tokens].copy_(source[: key.tokens] * 2 + 1)
            return target[: key.tokens]

        return run

    return make


def test_replays_read_what_the_buffers_hold_now():
    cache = _cache()
    report = cache.capture_all(choose_ladder(LIMITS).keys(LIMITS), _make(cache))
    assert report.complete, report.lines()
    for tokens in (1, 5, 32):
        cache.buffers["in"].copy_(torch.arange(32, device="cuda") + tokens)
        key = cache.match(GraphKey(tokens, min(tokens, 8), 4, LIMITS.table_width))
        got = cache.replay(key)
        expected = (torch.arange(32)[: key.tokens] + tokens) * 2.0 + 1
        assert torch.equal(got.cpu(), expected)


def test_a_size_that_breaks_its_capture_leaves_streams_random_state_and_the_rest_usable():
    """Stream isolation broke one of five sizes: FreeToken #71. A synchronise breaks this one."""
    cache = _cache()
    before = torch.cuda.current_stream()
    report = cache.capture_all(choose_ladder(LIMITS).keys(LIMITS), _make(cache, broken={16}))
    assert [item.key.tokens for item in report.failed] == [16], report.lines()
    assert torch.cuda.current_stream() == before
    assert torch.rand(3, device="cuda").isfinite().all()
    assert torch.zeros(1 << 20, device="cuda").sum().item() == 0
    cache.buffers["in"].fill_(3)
    key = cache.match(GraphKey(16, 4, 4, LIMITS.table_width))
    assert key.tokens == 20
    assert torch.equal(cache.replay(key).cpu(), torch.full((20,), 7.0))


def test_a_step_that_uses_random_numbers_survives_a_neighbour_that_fails():
    backend = CudaGraphBackend("cuda")
    out = torch.zeros(64, device="cuda")

    def fails():
        out.uniform_()
        torch.cuda.synchronize()

    with pytest.raises(CaptureError):
        backend.capture(fails)
    graph = backend.capture(lambda: out.uniform_())
    first = graph.replay().clone()
    assert not torch.equal(first, graph.replay())


def test_the_bytes_held_are_seen_and_a_limit_stops_before_them():
    size = 64 << 20
    backend = CudaGraphBackend("cuda")

    def run():
        return torch.empty(size, dtype=torch.uint8, device="cuda").zero_().sum()

    assert backend.estimate(run) >= size
    kept = backend.capture(run)
    assert backend.pool_bytes() >= size
    kept.replay()
    cache = GraphCache(CudaGraphBackend("cuda"), LIMITS, bytes_limit=size // 2)
    report = cache.capture_all([GraphKey(4, 4, 4, LIMITS.table_width)], lambda key: run)
    assert report.failed[0].stage == "limit"


def test_a_moved_buffer_is_refused_and_recaptured():
    cache = _cache()
    make = _make(cache)
    cache.capture_all([GraphKey(4, 4, 4, LIMITS.table_width)], make)
    cache.buffers.resize("in", (64,)).fill_(5)
    key = GraphKey(4, 4, 4, LIMITS.table_width)
    assert cache.match(key) is None
    assert cache.recapture(make).complete
    assert torch.equal(cache.replay(cache.match(key)).cpu(), torch.full((4,), 11.0))
