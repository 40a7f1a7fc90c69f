"""A drafter that reads the target inside real CUDA graphs: the oracle's tokens, and no wait."""

from __future__ import annotations

import pytest
import torch

from adaverify_contracts import DrafterDescriptor, LoadedModel, Seen
from adaverify_engine import Engine, Sampling
from adaverify_runtime import PluginSettings, assemble, load_plugins

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MODES = ("none", "fixed", "adaptive")


@pytest.fixture
def make(tiny):
    """Return a factory of captured engines on the device, with every installed plugin."""
    made = []

    def factory(mode, model, *, capture=True, block=tiny.Block, **changes):
        options = tiny.options(device="cuda", page_size=16, **changes)
        verifier = assemble(
            options.limits,
            device="cuda",
            mode=mode,
            settings=tiny.settings(),
            plugins=load_plugins(PluginSettings()),
            drafter=DrafterDescriptor("tiny-block", Seen.PREFIX, True, block),
            cost_table=tiny.steep(),
        )
        made.append(verifier)
        drafter = block(options.limits, verifier.device)
        # A graph would keep what it remembers at addresses that every replay overwrites.
        drafter.remembers = False
        engine = Engine(LoadedModel(model, tiny.Tokenizer()), verifier, drafter, options)
        if capture:
            report = engine.capture()
            assert report.captured and not report.failed, report
        return engine

    yield factory
    for verifier in made:
        verifier.close()


@pytest.fixture
def model(tiny):
    return tiny.Decoder().to("cuda")


def run(engine, prompts, sampling):
    ids = [engine.add(prompt, sampling) for prompt in prompts]
    done = engine.run()
    return [done[request] for request in ids]


@pytest.mark.parametrize("concurrency", [1, 4, 16])
@pytest.mark.parametrize("mode", MODES)
def test_captured_steps_emit_the_oracles_tokens(make, tiny, model, mode, concurrency):
    """Drafting, target and features in one graph; requests begin and end while steps run one ahead."""
    prompts, oracle = tiny.prompts(20), tiny.Decoder()
    engine = make(mode, model, max_requests=concurrency)
    for prompt, completion in zip(prompts, run(engine, prompts, Sampling(max_tokens=30)), strict=True):
        expected = tiny.greedy(oracle, prompt, 30)
        same = [a == b for a, b in zip(completion.tokens, expected, strict=True)]
        assert all(same) or completion.gaps[same.index(False)] < 1e-4
    counters = engine.verifier.counters
    assert counters["graph replayed"] > 10
    assert "verified-not-planned" not in counters
    if mode != "none":
        assert engine.stats.accepted > 20
    if mode == "adaptive" and concurrency > 1:
        assert 0 < engine.stats.verified < engine.stats.drafted, "nothing was trimmed"


def test_captured_steps_draft_what_eager_steps_draft(make, tiny, model):
    """Same features, same context: as many drafts are accepted, step by step, and the tokens agree."""
    prompts = tiny.prompts(8)
    engines = [make("fixed", model, capture=capture) for capture in (False, True)]
    eager, captured = (run(engine, prompts, Sampling(max_tokens=40)) for engine in engines)
    assert [one.tokens for one in eager] == [one.tokens for one in captured]
    assert [one.steps for one in eager] == [one.steps for one in captured]


def test_it_drafts_on_after_steps_that_drafted_nothing(make, tiny, model, monkeypatch):
    """Drafting-free graphs keep the features that it reads: as much is accepted as in eager steps."""
    prompts, oracle = tiny.prompts(6), tiny.Decoder()
    asked, accepted, texts = [], [], []

    def draft_next(requests, kv_tokens):
        asked.append(len(asked) % 7 >= 4)
        return asked[-1], "three steps in seven"

    for capture in (False, True):
        # One request at a time, so that both ways ask in the same places.
        engine = make("adaptive", model, capture=capture, max_requests=1)
        monkeypatch.setattr(engine.verifier.manager, "draft_next", draft_next)
        done = []
        for prompt in prompts:
            asked.clear()
            done += run(engine, [prompt], Sampling(max_tokens=30))
        for prompt, completion in zip(prompts, done, strict=True):
            expected = tiny.greedy(oracle, prompt, 30)
            same = [a == b for a, b in zip(completion.tokens, expected, strict=True)]
            assert all(same) or completion.gaps[same.index(False)] < 1e-4
        accepted.append(engine.stats.accepted)
        texts.append([one.tokens for one in done])
    assert engine.verifier.counters["graph replayed: drafting-free"] > 10
    assert texts[0] == texts[1]
    assert accepted[1] > 0.8 * accepted[0] > 0


def test_a_block_may_look_with_more_queries_than_a_step_has(make, tiny, model):
    """K = 2 of a block of 7: the attention of the drafter has scratch of its own."""

    class Wide(tiny.Block):
        def __init__(self, limits, device):
            super().__init__(tiny.options(draft_tokens=7).limits, device)

        def block(self, *arguments):
            drafts, scores = super().block(*arguments)
            return drafts[:, :2], scores[:, :2]

    engine = make("fixed", model, block=Wide, draft_tokens=2)
    prompts, oracle = tiny.prompts(6), tiny.Decoder()
    for prompt, completion in zip(prompts, run(engine, prompts, Sampling(max_tokens=20)), strict=True):
        expected = tiny.greedy(oracle, prompt, 20)
        same = [a == b for a, b in zip(completion.tokens, expected, strict=True)]
        assert all(same) or completion.gaps[same.index(False)] < 1e-4


def test_steps_wait_for_nothing_but_results(make, tiny, model, refusing_waits):
    """Every synchronising call of torch is an error meanwhile."""
    engine = make("adaptive", model, max_requests=4, max_model_len=256)
    for prompt in tiny.prompts(4):
        engine.add(prompt, Sampling(max_tokens=200))
    while engine.verifier.counters.get("graph replayed", 0) < 5:
        engine.step()
    before = engine.verifier.counters["graph replayed"]
    with refusing_waits():
        for _ in range(20):
            engine.step()
    assert engine.verifier.counters["graph replayed"] - before >= 20
    engine.run()
