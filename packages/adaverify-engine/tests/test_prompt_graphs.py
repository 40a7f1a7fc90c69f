"""Passes over prompts as replays: padded sizes, the same states and tokens, fallbacks by name.

Without a GPU the attention kernel runs in Triton's interpreter; the choice is made before it is imported.
"""

from __future__ import annotations

import os

import pytest
import torch

from adaverify_contracts import CaptureError
from adaverify_engine import Sampling
from adaverify_engine.attention import prompts as prompt_attention
from adaverify_engine.prompt_graphs import EVEN, LEAST, PromptGraphs, prompt_sizes
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
