"""Passes over prompts as replays: padded sizes, the same states and tokens, fallbacks by name.

Without a GPU the attention kernel runs in Triton's interpreter; the choice is made before it is imported.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from adaverify_contracts import CaptureError
from adaverify_engine import Sampling, prompt_graphs
from adaverify_engine.attention import prompts as prompt_attention
from adaverify_engine.prompt_graphs import EVEN, LEAST, PromptGraphs, prompt_sizes
from adaverify_engine.scheduler import PrefillChunk
from adaverify_runtime import GraphSettings, PlannerSettings, Settings

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")
pytestmark = [
    pytest.mark.skipif(
        torch.cuda.is_available(), reason="on a card test_replayed_steps_gpu.py runs this compiled"
    ),
    # The interpreter's own, with a loop whose end a kernel has loaded.
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning"),
]
MODES = ("none", "fixed", "adaptive")


@pytest.fixture(autouse=True)
def kernel_on_a_cpu(monkeypatch):
    """The interpreted kernel serves prompts here, as the compiled one does on a card."""
    monkeypatch.setattr(prompt_attention, "kernel_obstacle", lambda device, check: "")


def run(engine, prompts, count=6):
    ids = [engine.add(prompt, Sampling(max_tokens=count)) for prompt in prompts]
    done = engine.run()
    return [done[request] for request in ids]


def require_oracle(tiny, prompts, done, count=6):
    for prompt, completion in zip(prompts, done, strict=True):
        expected = tiny.greedy(tiny.Decoder(), prompt, count)
        same = [a == b for a, b in zip(completion.tokens, expected, strict=True)]
        assert all(same) or completion.gaps[same.index(False)] < 1e-4


def counted(engine):
    name = "graph prompts "
    counters = engine.verifier.counters
    return {key.removeprefix(name): n for key, n in counters.items() if key.startswith(name)}


@pytest.mark.parametrize("longest", [1, 16, 63, 64, 65, 100, 256, 1000, 1024, 1500, 4096, 5000])
def test_sizes_rise_to_the_longest_and_pad_by_half_at_most(longest):
    sizes = prompt_sizes(longest)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == longest
    for tokens in range(1, longest + 1):
        size = next(size for size in sizes if size >= tokens)
        assert size < 2 * max(tokens, LEAST // 2 + 1)
        if tokens > EVEN:
            assert size <= 1.5 * tokens


@pytest.mark.parametrize("mode", MODES)
def test_tokens_are_the_oracles_and_every_prompt_step_is_a_replay(make_engine, tiny, mode):
    """Prompts of 1 to 29 tokens in chunks of 16: some go on in the next step."""
    engine, prompts = make_engine(mode, replayed=True, max_requests=3), tiny.prompts(7)
    require_oracle(tiny, prompts, run(engine, prompts))
    found = counted(engine)
    assert found["captured"] == 1
    assert found["replayed"] == found["matched"] >= sum(map(len, prompts)) / 16
    assert not any(name.startswith("missed") for name in found)


def test_a_drafter_that_reads_the_target_gets_its_features(make_engine, tiny):
    """Its first drafts rest on the features of the prompt's last token."""
    prompts, seen = tiny.prompts(5), []
    for prompts_captured in (True, False):
        settings = Settings(
            planner=PlannerSettings(warmup_steps=2, online=False),
            graphs=GraphSettings(prompts=prompts_captured),
        )
        engine = make_engine("fixed", drafter=tiny.Block, replayed=True, max_requests=2, settings=settings)
        run(engine, prompts)
        assert ("replayed" in counted(engine)) == prompts_captured
        seen.append((engine.stats.accepted, engine.stats.drafted))
    assert seen[0] == seen[1]
    assert seen[0][0] > 0


def test_states_and_cache_are_those_of_the_eager_pass(make_engine, tiny):
    """Bit for bit, and padding is stored on the null page alone."""
    results = []
    for prompts_captured in (True, False):
        settings = Settings(
            planner=PlannerSettings(warmup_steps=2, online=False),
            graphs=GraphSettings(prompts=prompts_captured),
        )
        engine = make_engine("fixed", replayed=True, max_requests=3, prefill_chunk=64, settings=settings)
        engine.executor.cache.data[:, :, 4:].fill_(7.0)
        for prompt in ([3, 1, 4], list(range(17)), [9]):
            engine.add(prompt, Sampling(max_tokens=2))
        engine.step()
        results.append(engine.executor.cache.data[:, :, 4:].clone())
    assert (results[0] != 7.0).any()
    assert torch.equal(results[0], results[1])


@pytest.mark.parametrize(
    ("page_size", "prefill_chunk", "max_requests"), [(1, 1, 1), (1, 40, 3), (3, 7, 2), (64, 65, 4)]
)
def test_tokens_are_the_oracles_at_the_smallest_and_odd_sizes(
    make_engine, tiny, page_size, prefill_chunk, max_requests
):
    sizes = {"page_size": page_size, "prefill_chunk": prefill_chunk, "max_requests": max_requests}
    engine, prompts = make_engine("fixed", replayed=True, **sizes), tiny.prompts(5)
    require_oracle(tiny, prompts, run(engine, prompts, 3), 3)
    assert counted(engine)["captured"] == len(prompt_sizes(prefill_chunk))
    assert not any(name.startswith("missed") for name in counted(engine))


@pytest.mark.parametrize(("page_size", "max_requests"), [(1, 5), (3, 1), (4, 8), (64, 3)])
def test_tiles_hold_every_token_once_and_padding_stays_on_the_null_page(make_engine, page_size, max_requests):
    """However the tokens of a step are shared among prompts, its tiles find room."""
    engine = make_engine(
        "fixed", replayed=True, page_size=page_size, max_requests=max_requests, prefill_chunk=90
    )
    graphs, random = engine.executor._graphs, np.random.default_rng(page_size)
    table = np.arange(1, 1 + max_requests * 120, dtype=np.int32).reshape(max_requests, 120)
    table = table[:, : engine.options.limits.table_width]
    for _ in range(60):
        room = int(random.choice([64, 90]))
        chunks = random_chunks(random, max_requests, room)
        tokens = sum(chunk.length for chunk in chunks)
        with torch.inference_mode():
            graphs._load(chunks, table, room)
        tiles = graphs._tiles[: graphs._rows(room)].numpy()
        tiles = tiles[tiles[:, 1] > 0]
        rows = np.concatenate([first + np.arange(count) for first, count, _, _ in tiles])
        assert rows.tolist() == list(range(room))
        assert tiles[:, 1].max() <= engine.executor.prompts.tile
        for first, count, start, row in tiles.tolist():
            assert (row == max_requests) == (first >= tokens)
            assert row < max_requests or start + count <= page_size
        starts = [chunk.start + np.arange(chunk.length) for chunk in chunks]
        positions = graphs._tokens[room : 2 * room].numpy()
        assert positions.tolist() == [*np.concatenate(starts).tolist(), *[0] * (room - tokens)]
        assert not graphs._table[max_requests].any()


def random_chunks(random, most, room):
    """Return chunks of different requests with ``room`` tokens or fewer, many of them short."""
    chunks, left = [], int(random.integers(1, room + 1))
    for slot in random.permutation(most).tolist():
        if not left:
            break
        length = int(random.integers(1, min(left, 30) + 1))
        start = int(random.integers(0, 60))
        request = SimpleNamespace(slot=slot, prompt=list(range(start + length)))
        chunks.append(PrefillChunk(request, start, length))
        left -= length
    return tuple(chunks)


def test_features_are_kept_where_memory_ran_out_when_room_for_them_was_made(make_engine, tiny, monkeypatch):
    """The size that failed is named; a smaller one makes the room, and the drafter gets its features."""
    inner, refused = torch.Tensor.new_zeros, []

    def new_zeros(self, *args, **kwargs):
        if args == ((96, 64),) and not refused:
            refused.append(args)
            raise torch.OutOfMemoryError("injected")
        return inner(self, *args, **kwargs)

    features = []
    for fails in (True, False):
        with monkeypatch.context() as patch:
            if fails:
                patch.setattr(torch.Tensor, "new_zeros", new_zeros)
            engine = make_engine("fixed", drafter=tiny.Block, replayed=True, prefill_chunk=96)
        assert [one.key.tokens for one in engine.prompt_captures.failed] == [96] * fails
        engine.add(list(range(17)), Sampling(max_tokens=4))
        engine.step()
        assert counted(engine)["replayed"] == 1
        features.append(engine.drafter.features[0].clone())
    assert refused and features[0].any()
    assert torch.equal(*features)


def test_a_size_that_cannot_be_captured_is_served_by_a_larger_one(make_engine, tiny, monkeypatch):
    inner = PromptGraphs._enqueue

    def enqueue(self, tokens):
        if tokens == LEAST:
            raise CaptureError("no room", remedy="none")
        inner(self, tokens)

    monkeypatch.setattr(PromptGraphs, "_enqueue", enqueue)
    engine, prompts = make_engine("fixed", replayed=True, prefill_chunk=96), tiny.prompts(4)
    require_oracle(tiny, prompts, run(engine, prompts))
    found = counted(engine)
    assert (found["captured"], found["capture failed"]) == (1, 1)
    assert found["replayed"] > 0
    (failure,) = engine.prompt_captures.failed
    assert failure.key.tokens == LEAST
    assert "no room" in failure.cause


def test_without_any_size_prompts_are_read_eagerly_and_counted(make_engine, tiny, monkeypatch):
    def enqueue(self, tokens):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(PromptGraphs, "_enqueue", enqueue)
    engine, prompts = make_engine("fixed", replayed=True), tiny.prompts(4)
    require_oracle(tiny, prompts, run(engine, prompts))
    found = counted(engine)
    assert found["capture failed"] == 1
    assert "replayed" not in found
    assert sum(n for name, n in found.items() if name.startswith("missed")) > 0


def test_a_closed_verifier_has_dropped_them(make_engine, tiny):
    engine = make_engine("fixed", replayed=True)
    engine.verifier.close()
    assert engine.executor._graphs.run((), engine._scheduler.block_table) is None


def test_a_step_larger_than_any_graph_runs_eagerly_and_is_counted(make_engine, tiny, monkeypatch):
    monkeypatch.setattr(prompt_graphs, "MOST", 8)
    engine, prompts = make_engine("fixed", replayed=True), tiny.prompts(4)
    require_oracle(tiny, prompts, run(engine, prompts))
    found = counted(engine)
    assert found["captured"] == 1
    assert found["missed: more tokens than any graph"] > 0


def test_captures_that_nobody_wants_are_neither_tried_nor_missed(make_engine, tiny):
    settings = Settings(
        planner=PlannerSettings(warmup_steps=2, online=False), graphs=GraphSettings(prompts=False)
    )
    engine, prompts = make_engine("fixed", replayed=True, settings=settings), tiny.prompts(3)
    require_oracle(tiny, prompts, run(engine, prompts))
    assert engine.prompt_captures is None
    assert not counted(engine)
