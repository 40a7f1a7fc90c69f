"""The capture sequence against a runtime in plain Python; the real one is in test_cuda_device.py."""

import gc

import pytest

from adaverify_contracts import CapturedGraph, CaptureError, GraphBackend, GraphKey
from adaverify_graphs import CudaGraphBackend, GraphCache


def _backend(fake_cuda, **options):
    return CudaGraphBackend("cuda:0", runtime=fake_cuda, **options)


def _step(cuda, out, value=1, scratch=0):
    def run():
        cuda.scratch(scratch)
        cuda.launch(lambda: out.append(value))
        return out

    return run


def test_warm_up_runs_on_the_side_stream_and_the_capture_records_without_running(fake_cuda):
    backend, out, streams = _backend(fake_cuda), [], []

    def run():
        streams.append(fake_cuda.current_stream().name)
        fake_cuda.launch(lambda: out.append(1))
        return out

    graph = backend.capture(run)
    assert out == [1, 1], "two warm-ups ran, the capture only recorded"
    assert streams == ["side1"] * 3
    assert graph.replay() is out
    assert out == [1, 1, 1]
    assert isinstance(graph, CapturedGraph)
    assert isinstance(backend, GraphBackend)


def test_the_side_stream_is_ordered_with_the_current_one_both_ways(fake_cuda):
    _backend(fake_cuda).capture(_step(fake_cuda, []))
    waits = [entry for entry in fake_cuda.log if entry[0] == "wait"]
    assert waits == [("wait", "side1", "default"), ("wait", "default", "side1")]
    assert fake_cuda.current_stream() is fake_cuda.default


def test_all_captures_share_one_pool_and_one_stream(fake_cuda):
    backend = _backend(fake_cuda)
    graphs = [backend.capture(_step(fake_cuda, [])) for _ in range(3)]
    assert len({graph.graph.pool for graph in graphs}) == 1
    assert len(fake_cuda.streams) == 1
    assert {graph.graph.mode for graph in graphs} == {"thread_local"}


def test_a_stream_of_the_callers_own_is_restored(fake_cuda):
    own = fake_cuda.Stream()
    fake_cuda.set_stream(own)
    _backend(fake_cuda).capture(_step(fake_cuda, []))
    assert fake_cuda.current_stream() is own


def test_the_third_of_five_sizes_waits_on_an_outside_event_and_the_rest_stay_usable(fake_cuda, limits):
    """A capture dies of stream isolation: state restored, error names size and cause (FreeToken #71)."""
    cache = GraphCache(_backend(fake_cuda), limits)
    outs = {}

    def make(key):
        outs[key.tokens] = out = []

        def run():
            if key.tokens == 12:
                fake_cuda.wait_outside_event()
            fake_cuda.launch(lambda: out.append(key.tokens))

        return run

    keys = [GraphKey(tokens, 4, 4, limits.table_width) for tokens in (4, 8, 12)]
    keys += [GraphKey(tokens, 8, 4, limits.table_width) for tokens in (16, 20)]
    report = cache.capture_all(keys, make)
    assert [key.tokens for key in report.captured] == [20, 16, 8, 4]
    (failure,) = report.failed
    assert failure.key.tokens == 12
    assert "CaptureInvalidatedError: dependency created on uncaptured work" in failure.cause
    assert fake_cuda.current_stream() is fake_cuda.default
    assert fake_cuda.capturing is None
    for tokens in (4, 8, 16, 20):
        outs[tokens].clear()
        cache.replay(cache.match(GraphKey(tokens, 4, 4, limits.table_width)))
        assert outs[tokens] == [tokens]


def test_the_third_of_five_sizes_runs_out_of_memory_in_its_capture(fake_cuda, limits):
    """The same with out of memory while recording: the other four stay usable (FreeToken #71)."""
    cache = GraphCache(_backend(fake_cuda), limits)

    def make(key):
        def run():
            hungry = key.tokens == 12 and fake_cuda.capturing is not None
            fake_cuda.scratch(fake_cuda.total + 1 if hungry else 10)

        return run

    keys = [GraphKey(tokens, 4, 4, limits.table_width) for tokens in (4, 8, 12, 15, 16)]
    report = cache.capture_all(keys, make)
    assert [key.tokens for key in report.captured] == [16, 15, 8, 4]
    assert "MemoryError: out of memory" in report.failed[0].cause
    assert report.lines()[1].startswith("12 tokens has no graph (capture): the step could not be recorded")
    pools = [graph.pool for graph in fake_cuda.graphs if graph.state == "ready"]
    assert len(set(pools)) == 2, "the pool that was being recorded to is not used again"


@pytest.mark.parametrize("breaks_driver", [True, False])
def test_a_step_that_raises_while_recording_leaves_stream_and_collector_as_before(fake_cuda, breaks_driver):
    backend = _backend(fake_cuda)

    def run():
        if fake_cuda.capturing is not None:
            fake_cuda.broken = breaks_driver
            raise ValueError("only in a capture")

    with pytest.raises(CaptureError, match="could not be recorded: ValueError: only in a capture") as caught:
        backend.capture(run)
    assert isinstance(caught.value.__cause__, ValueError), "the step's own error, not the driver's echo"
    assert fake_cuda.current_stream() is fake_cuda.default
    assert gc.isenabled()
    assert fake_cuda.graphs[-1].state == "reset"
    out = []
    backend.capture(_step(fake_cuda, out)).replay()
    assert out == [1, 1, 1]


def test_an_error_that_only_shows_when_the_capture_ends_is_named(fake_cuda):
    def run():
        if fake_cuda.capturing is not None:
            fake_cuda.broken = True

    with pytest.raises(CaptureError, match="previous error during capture"):
        _backend(fake_cuda).capture(run)
    assert fake_cuda.current_stream() is fake_cuda.default


def test_running_out_of_memory_in_the_warm_up_never_begins_a_capture(fake_cuda):
    def run():
        raise MemoryError("400 MiB")

    with pytest.raises(CaptureError, match="failed in its warm-up: MemoryError: 400 MiB"):
        _backend(fake_cuda).capture(run)
    assert fake_cuda.graphs == []
    assert fake_cuda.current_stream() is fake_cuda.default
    assert ("empty_cache",) in fake_cuda.log


def test_an_interrupt_restores_the_stream_and_passes(fake_cuda):
    backend = _backend(fake_cuda)

    def run():
        if fake_cuda.capturing is not None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backend.capture(run)
    assert fake_cuda.current_stream() is fake_cuda.default
    assert fake_cuda.capturing is None
    assert gc.isenabled()


def test_the_collector_is_off_while_recording_and_stays_off_for_who_had_it_off(fake_cuda):
    seen = []

    def run():
        if fake_cuda.capturing is not None:
            seen.append(gc.isenabled())

    _backend(fake_cuda).capture(run)
    assert seen == [False]
    gc.disable()
    try:
        _backend(fake_cuda).capture(run)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_estimate_is_the_peak_beyond_what_the_pool_has(fake_cuda):
    backend, out = _backend(fake_cuda), []
    large, small, larger = (_step(fake_cuda, out, scratch=size) for size in (1000, 400, 1500))
    assert backend.estimate(large) == 1000
    assert fake_cuda.current_stream() is fake_cuda.default
    kept = backend.capture(large)
    assert backend.pool_bytes() == 1000
    assert backend.estimate(small) == 0
    also = backend.capture(small)
    assert backend.pool_bytes() == 1000, "a smaller step reuses the pool"
    assert backend.estimate(larger) == 500
    assert kept.replay() is also.replay()


def test_a_pool_without_live_graphs_is_not_counted_and_not_reused(fake_cuda):
    backend = _backend(fake_cuda)
    graph = backend.capture(_step(fake_cuda, [], scratch=1000))
    pool = graph.graph.pool
    assert backend.pool_bytes() == 1000
    del graph
    assert backend.pool_bytes() == 0
    assert backend.estimate(_step(fake_cuda, [], scratch=400)) == 400
    assert backend.capture(_step(fake_cuda, [])).graph.pool != pool


def test_a_size_over_the_limit_leaves_room_for_the_smaller_ones(fake_cuda, limits):
    cache = GraphCache(_backend(fake_cuda), limits, bytes_limit=500)
    keys = [GraphKey(tokens, 4, 4, limits.table_width) for tokens in (4, 8, 12)]

    def make(key):
        # The capture takes more than the warm-up showed, for the largest size only.
        def run():
            extra = 400 if key.tokens == 12 and fake_cuda.capturing is not None else 0
            fake_cuda.scratch(key.tokens * 10 + extra)

        return run

    report = cache.capture_all(keys, make)
    assert [item.stage for item in report.failed] == ["limit"]
    assert "520 bytes held after it pass the limit of 500" in report.failed[0].cause
    assert [key.tokens for key in report.captured] == [8, 4]


def test_a_capture_without_a_warm_up_is_refused():
    with pytest.raises(CaptureError, match="warm-up"):
        CudaGraphBackend("cuda:0", warmups=0)


def test_making_a_backend_touches_no_device():
    import torch

    CudaGraphBackend("cuda:0")
    assert not torch.cuda.is_initialized()
