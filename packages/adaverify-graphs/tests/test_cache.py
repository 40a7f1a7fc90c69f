"""Capture isolates failures; a match is the smallest dominating graph; replay refuses moved buffers."""

import pytest
import torch

from adaverify_contracts import GraphBackend, GraphError, GraphKey, GraphSupport, Limits, StaleBufferError
from adaverify_graphs import BufferSet, EagerBackend, GraphCache, batch_key, choose_ladder


def _cache(limits, tiers=None, **options):
    cache = GraphCache(EagerBackend(), limits, **options)
    ladder = choose_ladder(limits)
    keys = [key for key in ladder.keys(limits) if tiers is None or key.tokens in tiers]
    return cache, keys


def _step(key):
    return lambda: key.tokens


def test_sizes_are_captured_largest_first(limits):
    cache, keys = _cache(limits)
    order = []
    report = cache.capture_all(keys, _step, progress=lambda done, total, key: order.append(key.tokens))
    assert order == sorted(order, reverse=True) == [32, 28, 24, 20, 16, 12, 8, 4]
    assert [key.tokens for key in report.captured] == order
    assert report.complete
    assert [key.tokens for key in cache.keys] == order[::-1]


def test_lengths_4_and_1_with_k_3_have_a_ragged_graph(limits):
    """Only "uniform" and "anything" existed, so ragged decode had no graph: vllm #53929."""
    cache, keys = _cache(limits)
    cache.capture_all(keys, _step)
    key = cache.match(batch_key([4, 1], [True, True], limits.table_width, max_query_len=4))
    assert key.tokens == 8
    assert cache.replay(key) == 8


def test_a_graph_of_another_k_does_not_hide_the_right_one():
    """K = 6 up to 8 requests, 4 up to 32, 3 up to 128; a batch of 9 x 5 = 45 tokens: vllm #56136."""
    limits = Limits(max_requests=128, draft_tokens=6, max_model_len=64, page_size=16)
    width = limits.table_width
    keys = [GraphKey(56, 8, 7, width), GraphKey(160, 32, 5, width), GraphKey(512, 128, 4, width)]
    cache = GraphCache(EagerBackend(), limits)
    cache.capture_all(keys, _step)
    batch = batch_key([5] * 9, [True] * 9, width, max_query_len=5)
    assert cache.match(batch) == GraphKey(160, 32, 5, width)


def test_a_graph_of_four_requests_serves_three_at_least_match():
    """Graph (16 tokens, 4 requests), batch (16, 3): an exact request count is never hit, vllm #36165."""
    limits = Limits(max_requests=4, draft_tokens=7, max_model_len=64, page_size=16)
    cache = GraphCache(EagerBackend(), limits)
    key = GraphKey(16, 4, 8, limits.table_width)
    cache.capture_all([key], _step)
    assert cache.match(GraphKey(16, 3, 8, limits.table_width)) == key


@pytest.mark.parametrize(("tokens", "tier"), [(0, 4), (1, 4), (3, 4), (4, 4), (5, 8), (31, 32), (32, 32)])
def test_sizes_are_compared_in_tokens_and_the_smallest_wins(limits, tokens, tier):
    cache, keys = _cache(limits)
    cache.capture_all(keys, _step)
    assert cache.match(GraphKey(tokens, min(tokens, 4), 4, limits.table_width)).tokens == tier


@pytest.mark.parametrize("requests", [1, 2, 3, 4])
def test_a_batch_that_verifies_nothing_stays_on_a_graph(limits, requests):
    """K = 2 up to 4 requests and K = 0 from 5 fell off the graphs: 232 -> 24 tok/s (vllm #49548)."""
    cache, keys = _cache(limits)
    cache.capture_all(keys, _step)
    batch = batch_key([1] * requests, [True] * requests, limits.table_width, max_query_len=1)
    assert cache.replay(cache.match(batch)) == 4


def test_a_batch_of_one_kind_is_not_served_by_the_other(limits):
    """Graphs of one token a request draft nothing: neither family serves the other's batches."""
    width = limits.table_width
    bare, drafting = GraphKey(4, 4, 1, width), GraphKey(4, 4, 4, width)
    cache = GraphCache(EagerBackend(), limits)
    cache.capture_all([bare, drafting], _step)
    assert cache.match(GraphKey(3, 3, 1, width), same_query_len=True) == bare
    assert cache.match(GraphKey(3, 3, 4, width), same_query_len=True) == drafting
    assert cache.match(GraphKey(3, 3, 4, width)) == drafting
    cache = GraphCache(EagerBackend(), limits)
    cache.capture_all([drafting], _step)
    assert cache.match(GraphKey(3, 3, 1, width), same_query_len=True) is None
    assert cache.counters["missed: nothing captured"] == 1


def test_a_prefill_chunk_never_matches_and_is_counted(limits):
    cache, keys = _cache(limits)
    cache.capture_all(keys, _step)
    assert cache.match(batch_key([4, 4], [True, False], limits.table_width, max_query_len=4)) is None
    assert cache.counters["missed: prefill"] == 1


def test_every_miss_has_its_reason(limits):
    width = limits.table_width
    cache = GraphCache(EagerBackend(), limits)
    assert cache.match(GraphKey(1, 1, 4, width)) is None
    cache.capture_all([GraphKey(8, 4, 3, width)], _step)
    for batch in (
        GraphKey(9, 4, 3, width),
        GraphKey(8, 5, 3, width),
        GraphKey(8, 4, 4, width),
        GraphKey(8, 4, 3, width + 1),
    ):
        assert cache.match(batch) is None
    misses = {name: count for name, count in cache.counters.items() if name.startswith("missed")}
    assert misses == {
        "missed: nothing captured": 1,
        "missed: more tokens than any graph": 1,
        "missed: more requests than any graph": 1,
        "missed: longer query than any graph": 1,
        "missed: table width": 1,
    }


def test_an_eager_point_that_runs_out_of_memory_is_dropped_and_the_rest_kept():
    """The tail point 4096 raised out-of-memory after the captures had succeeded: vllm-ascend #16761."""
    limits = Limits(max_requests=1024, draft_tokens=3, max_model_len=64, page_size=16)
    cache = GraphCache(EagerBackend(), limits)
    width = limits.table_width
    keys = [GraphKey(tokens, min(tokens, 1024), 4, width) for tokens in (512, 1024, 4096)]

    def step(key):
        def run():
            if key.tokens == 4096:
                raise MemoryError("4096 tokens")
            return key.tokens

        return run

    report = cache.capture_all(keys, step)
    assert [key.tokens for key in report.captured] == [1024, 512]
    (failure,) = report.failed
    assert failure.key.tokens == 4096
    assert "MemoryError" in failure.cause
    assert "4096 tokens has no graph (capture)" in report.lines()[1]
    assert cache.match(GraphKey(4096, 1024, 4, width)) is None
    assert cache.counters["missed: size failed to capture"] == 1
    assert cache.replay(cache.match(GraphKey(600, 200, 4, width))) == 1024


@pytest.mark.parametrize("stage", ["prepare", "estimate", "capture"])
def test_a_failure_at_any_stage_names_the_size_and_leaves_the_others(limits, stage):
    class Backend(EagerBackend):
        def estimate(self, run):
            if stage == "estimate" and run() == 12:
                raise RuntimeError("estimate")
            return 0

    def make(key):
        if stage == "prepare" and key.tokens == 12:
            raise RuntimeError("prepare")

        def run():
            if stage == "capture" and key.tokens == 12:
                raise RuntimeError("capture")
            return key.tokens

        return run

    cache = GraphCache(Backend(), limits)
    report = cache.capture_all(choose_ladder(limits).keys(limits), make)
    assert [(item.key.tokens, item.stage) for item in report.failed] == [(12, stage)]
    assert stage in report.failed[0].cause
    assert len(report.captured) == 7
    batch = GraphKey(11, 4, 4, limits.table_width)
    assert cache.match(batch).tokens == 16, "a failed size is served by the next one up"


def test_a_failed_size_can_be_captured_later(limits):
    cache, keys = _cache(limits, {8})
    broken = True

    def make(key):
        def run():
            if broken:
                raise RuntimeError("not yet")

        return run

    assert not cache.capture_all(keys, make).complete
    assert set(cache.failed) == set(keys)
    broken = False
    assert cache.capture_all(keys, make).complete
    assert cache.failed == {}


def test_nothing_is_captured_beyond_the_limit_in_bytes_and_the_estimate_comes_first(limits):
    """One size left 0.94 GiB of 5.12 for the KV, another ran out: estimate, and a limit (vllm #54418)."""

    class Backend(EagerBackend):
        held = 0

        def estimate(self, run):
            return run() * 10

        def capture(self, run):
            self.held += run() * 10
            return super().capture(run)

        def pool_bytes(self):
            return self.held

    cache = GraphCache(Backend(), limits, bytes_limit=300)
    report = cache.capture_all(choose_ladder(limits).keys(limits), _step)
    assert [key.tokens for key in report.captured] == [28]
    assert {failure.stage for failure in report.failed} == {"limit"}
    assert report.failed[0].cause == "0 bytes held and 320 estimated pass the limit of 300"
    assert report.pool_bytes == 280 <= report.bytes_limit
    assert dict(report.estimated_bytes)[report.failed[0].key] == 320


def test_a_capture_that_took_more_than_estimated_is_dropped(limits):
    class Backend(EagerBackend):
        held = 0

        def capture(self, run):
            self.held = 999
            return super().capture(run)

        def pool_bytes(self):
            return self.held

    cache = GraphCache(Backend(), limits, bytes_limit=300)
    report = cache.capture_all([GraphKey(4, 4, 4, limits.table_width)], _step)
    assert report.captured == ()
    assert "999 bytes held after it pass the limit of 300" in report.failed[0].cause


def test_a_grown_buffer_invalidates_its_graphs_until_they_are_captured_again(limits):
    """Capture, grow a buffer, replay: the graph reads where it was (onnxruntime-genai #2557)."""
    buffers = BufferSet({"lens": torch.arange(4)})
    cache = GraphCache(EagerBackend(), limits, buffers=buffers)
    key = GraphKey(4, 4, 4, limits.table_width)

    def make(key):
        lens = buffers["lens"]
        return lambda: int(lens.sum())

    cache.capture_all([key], make)
    buffers["lens"].add_(1)
    assert cache.replay(cache.match(key)) == 10
    buffers.resize("lens", (6,))[:] = 5
    assert cache.match(key) is None
    assert cache.counters["missed: stale buffers"] == 1
    with pytest.raises(StaleBufferError) as caught:
        cache.replay(key)
    assert caught.value.arrived == ("lens",)
    assert cache.stale() == (key,)
    assert cache.recapture(make).captured == (key,)
    assert cache.replay(cache.match(key)) == 30
    assert cache.stale() == ()


def test_a_buffer_resized_in_place_is_noticed_at_replay(limits):
    buffers = BufferSet({"lens": torch.arange(4)})
    cache = GraphCache(EagerBackend(), limits, buffers=buffers)
    key = GraphKey(4, 4, 4, limits.table_width)
    cache.capture_all([key], _step)
    buffers["lens"].resize_(4096)
    with pytest.raises(StaleBufferError):
        cache.replay(key)


def test_graphs_captured_after_a_move_stay_valid_beside_stale_ones(limits):
    buffers = BufferSet({"lens": torch.arange(4)})
    cache = GraphCache(EagerBackend(), limits, buffers=buffers)
    small, large = (GraphKey(tokens, 4, 4, limits.table_width) for tokens in (4, 8))
    cache.capture_all([small], _step)
    buffers.move("lens", "cpu")
    cache.capture_all([large], _step)
    assert cache.stale() == (small,)
    assert cache.match(small) == large, "a stale graph does not hide a good one"


def test_a_buffer_that_moves_during_its_own_capture_fails_that_size(limits):
    buffers = BufferSet({"lens": torch.arange(4)})
    cache = GraphCache(EagerBackend(), limits, buffers=buffers)
    key = GraphKey(4, 4, 4, limits.table_width)
    report = cache.capture_all([key], lambda key: lambda: buffers.move("lens", "cpu"))
    assert report.failed[0].cause == "buffers moved during the capture: lens"


def test_a_buffer_added_during_the_capture_belongs_to_the_graph(limits):
    buffers = BufferSet()
    cache = GraphCache(EagerBackend(), limits, buffers=buffers)
    key = GraphKey(4, 4, 4, limits.table_width)

    def make(key):
        def run():
            if "lazy" not in buffers:
                buffers.add("lazy", torch.zeros(2))

        return run

    assert cache.capture_all([key], make).complete
    buffers.move("lazy", "cpu")
    assert cache.stale() == (key,)


def test_uniform_mode_serves_uniform_batches_only_and_counts_the_ragged(limits):
    """Ragged flag true while the level is UNIFORM_BATCH: no ragged batch on such a graph (vllm #47808)."""
    cache, keys = _cache(limits, mode=GraphSupport.UNIFORM_BATCH)
    width = limits.table_width
    cache.capture_all([*keys, GraphKey(8, 4, 2, width)], _step)
    assert cache.match(GraphKey(5, 2, 4, width)) is None
    assert cache.counters["missed: ragged batch in mode UNIFORM_BATCH"] == 1
    assert cache.match(GraphKey(4, 2, 2, width), uniform=True) == GraphKey(8, 4, 2, width)
    assert cache.match(GraphKey(24, 6, 4, width), uniform=True).tokens == 32
    assert cache.match(GraphKey(6, 2, 3, width), uniform=True) is None
    assert cache.counters["missed: uniform length not captured"] == 1
    assert cache.mode is GraphSupport.UNIFORM_BATCH


def test_mode_never_runs_nothing(limits):
    cache, keys = _cache(limits, mode=GraphSupport.NEVER)

    def make(key):
        raise AssertionError("ran")

    assert cache.capture_all(keys, make).captured == ()
    assert cache.match(keys[0]) is None
    assert cache.counters["missed: mode is NEVER"] == 1


def test_keys_beyond_the_buffers_are_refused_before_anything_runs(limits):
    ran = []
    cache = GraphCache(EagerBackend(), limits)
    keys = [GraphKey(4, 4, 4, limits.table_width), GraphKey(40, 10, 4, limits.table_width)]
    with pytest.raises(GraphError, match="does not fit the buffers"):
        cache.capture_all(keys, lambda key: ran.append)
    assert ran == []
    assert cache.keys == ()


def test_replaying_what_was_never_captured_is_an_error(limits):
    cache = GraphCache(EagerBackend(), limits)
    with pytest.raises(GraphError, match="no graph"):
        cache.replay(GraphKey(4, 4, 4, limits.table_width))


def test_an_interrupt_ends_the_round(limits):
    cache, keys = _cache(limits)

    def make(key):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.capture_all(keys, make)


def test_clear_and_report_as_plain_values(limits):
    cache, keys = _cache(limits)
    report = cache.capture_all(keys + keys, _step)
    assert len(report.captured) == 8, "a key named twice is captured once"
    plain = report.as_dict()
    assert plain["captured"][0]["tokens"] == 32
    assert report.lines()[0].startswith("captured 8 of 8 sizes")
    cache.clear()
    assert cache.keys == ()
    assert isinstance(EagerBackend(), GraphBackend)
