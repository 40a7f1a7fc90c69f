"""Whole decode steps in real CUDA graphs: the oracle's tokens, no wait but for results, faults contained."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from adaverify_contracts import LoadedModel
from adaverify_engine import Engine, Sampling
from adaverify_engine.drafters import LookupDrafter
from adaverify_engine.eager import EagerSteps
from adaverify_engine.profiling import profile_engine
from adaverify_runtime import PluginSettings, assemble, load_plugins

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MODES = ("none", "fixed", "adaptive")


@pytest.fixture
def make(tiny):
    """Return a factory of engines on the device, with every installed plugin."""
    made = []

    def factory(mode, model, *, capture=True, **changes):
        options = tiny.options(device="cuda", page_size=16, **changes)
        plugins = load_plugins(PluginSettings())
        descriptor = next(one.descriptor for one in plugins.drafters() if one.descriptor.name == "n-gram")
        verifier = assemble(
            options.limits,
            device="cuda",
            mode=mode,
            settings=tiny.settings(),
            plugins=plugins,
            drafter=descriptor,
            cost_table=tiny.steep(),
        )
        made.append(verifier)
        drafter = descriptor.factory(options.limits, verifier.device)
        assert isinstance(drafter, LookupDrafter)
        engine = Engine(LoadedModel(model, tiny.Tokenizer()), verifier, drafter, options)
        return (engine, engine.capture()) if capture else (engine, None)

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


def require_oracle(tiny, model, prompts, done, count):
    oracle = tiny.Decoder()
    for prompt, completion in zip(prompts, done, strict=True):
        expected = tiny.greedy(oracle, prompt, count)
        same = [a == b for a, b in zip(completion.tokens, expected, strict=True)]
        assert all(same) or completion.gaps[same.index(False)] < 1e-4


@pytest.mark.parametrize("concurrency", [1, 4, 16])
@pytest.mark.parametrize("mode", MODES)
def test_captured_steps_emit_the_oracles_tokens(make, tiny, model, mode, concurrency):
    """Requests begin and end while steps run one ahead; host totals stay the device's."""
    prompts = tiny.prompts(20)
    engine, report = make(mode, model, max_requests=concurrency)
    assert report.captured and not report.failed
    done = run(engine, prompts, Sampling(max_tokens=30))
    require_oracle(tiny, model, prompts, done, 30)
    counters = engine.verifier.counters
    assert counters["graph replayed"] > 10
    assert counters["graph prompts replayed"] == counters["graph prompts matched"] > 0
    assert not counters["graph prompts capture failed"]
    assert "verified-not-planned" not in counters
    if mode == "adaptive" and concurrency > 1:
        assert 0 < engine.stats.verified < engine.stats.drafted, "nothing was trimmed"


@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_sampled_requests_draw_what_eager_steps_draw(make, tiny, model, top_p):
    """Noise belongs to the output position: captured, trimmed or eager, the draws are the same."""
    prompts = tiny.prompts(6)
    sampling = Sampling(temperature=0.9, top_p=top_p, max_tokens=20, seed=4)
    eager = run(make("fixed", model, capture=False)[0], prompts, sampling)
    for mode in MODES:
        engine, _ = make(mode, model)
        assert [one.tokens for one in run(engine, prompts, sampling)] == [one.tokens for one in eager]


def test_a_hundred_steps_wait_for_nothing_but_results(make, tiny, model, refusing_waits):
    """Every synchronising call of torch is an error meanwhile; a step is one graph launch."""
    engine, _ = make("adaptive", model, max_requests=4, max_model_len=256)
    for prompt in tiny.prompts(4):
        engine.add(prompt, Sampling(max_tokens=200))
    while engine.verifier.counters.get("graph replayed", 0) < 5:
        engine.step()
    before = engine.verifier.counters["graph replayed"]
    with refusing_waits():
        for _ in range(40):
            engine.step()
    assert engine.verifier.counters["graph replayed"] - before >= 40
    engine.run()


def test_prompts_are_begun_behind_replays_without_a_wait(make, tiny, model, monkeypatch, refusing_waits):
    """While they are enqueued every synchronising call of torch is an error; tokens are the oracle's."""
    engine, _ = make("adaptive", model, max_requests=4)
    run(engine, tiny.prompts(5), Sampling(max_tokens=4))
    begin, beside = EagerSteps.begin, []

    def watched(self, work, clock):
        with refusing_waits() if not work.decode else nullcontext():
            begun = begin(self, work, clock)
        beside.append(not work.decode and engine.pipeline.under_way)
        return begun

    monkeypatch.setattr(EagerSteps, "begin", watched)
    prompts = tiny.prompts(20)
    ids = [engine.add(prompt, Sampling(max_tokens=30 - place % 5)) for place, prompt in enumerate(prompts)]
    done = engine.run()
    assert sum(map(bool, beside)) > 5, "prompts were read with nothing under way"
    for place, (request, prompt) in enumerate(zip(ids, prompts, strict=True)):
        require_oracle(tiny, model, [prompt], [done[request]], 30 - place % 5)


def test_out_of_memory_at_one_size_leaves_the_others_and_right_tokens(make, tiny, model, monkeypatch):
    """A size whose capture runs out of memory is named; its batches run eagerly or one size up."""
    inner = model.forward

    def forward(tokens, positions, attend):
        if len(tokens) == 18:
            raise torch.OutOfMemoryError("injected: no memory for 18 tokens")
        return inner(tokens, positions, attend)

    monkeypatch.setattr(model, "forward", forward)
    engine, report = make("adaptive", model, max_requests=4)
    assert [failure.key.tokens for failure in report.failed] == [18]
    assert "injected" in report.failed[0].cause
    assert engine.verifier.counters["graph capture failed"] == 1
    prompts = tiny.prompts(8)
    done = run(engine, prompts, Sampling(max_tokens=30))
    require_oracle(tiny, model, prompts, done, 30)


@pytest.mark.parametrize("concurrency", [1, 4, 16])
def test_graphs_that_draft_and_graphs_that_do_not_take_turns(make, tiny, model, monkeypatch, concurrency):
    """Any order of both, one step ahead: the oracle's tokens, host totals right, both kinds replayed."""
    prompts = tiny.prompts(20)
    engine, report = make("adaptive", model, max_requests=concurrency)
    assert report.captured and not report.failed
    bare = engine.verifier.bare_tiers
    assert bare[-1] == concurrency
    asked, random = [], torch.Generator().manual_seed(concurrency)

    def draft_next(requests, kv_tokens):
        asked.append(bool(torch.rand(1, generator=random) < 0.5))
        return asked[-1], "as the test says"

    monkeypatch.setattr(engine.verifier.manager, "draft_next", draft_next)
    require_oracle(tiny, model, prompts, run(engine, prompts, Sampling(max_tokens=30)), 30)
    counters = engine.verifier.counters
    assert counters["graph replayed: drafting-free"] == asked.count(False) > 10
    assert counters["graph replayed"] == len(asked)
    assert not {"verified-not-planned", "drafted-not-scheduled"} & set(counters)
    assert engine.stats.accepted > 10


def test_drafting_free_steps_wait_for_nothing_but_results(make, tiny, model, monkeypatch, refusing_waits):
    """Every synchronising call of torch is an error meanwhile, at each change of kind too."""
    engine, _ = make("adaptive", model, max_requests=4, max_model_len=256)
    asked = []

    def draft_next(requests, kv_tokens):
        asked.append(len(asked) % 5 == 0)
        return asked[-1], "one step in five"

    monkeypatch.setattr(engine.verifier.manager, "draft_next", draft_next)
    for prompt in tiny.prompts(4):
        engine.add(prompt, Sampling(max_tokens=200))
    while engine.verifier.counters.get("graph replayed: drafting-free", 0) < 5:
        engine.step()
    before = engine.verifier.counters["graph replayed: drafting-free"]
    with refusing_waits():
        for _ in range(40):
            engine.step()
    assert engine.verifier.counters["graph replayed: drafting-free"] - before >= 30
    engine.run()


def test_both_kinds_are_timed_as_replays(make, tiny, model):
    """Profiling has a time of every drafting-free size, and the engine serves afterwards."""
    engine, _ = make("adaptive", model, max_requests=16)
    table = profile_engine(engine)
    assert {tokens for tokens, *_ in table.bare} == set(engine.verifier.bare_tiers)
    assert {tokens for tokens, *_ in table.points} <= set(engine.verifier.tiers)
    require_oracle(tiny, model, [[1, 2, 3]], run(engine, [[1, 2, 3]], Sampling(max_tokens=10)), 10)
