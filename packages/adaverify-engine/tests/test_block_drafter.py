"""Drafters that read the target: right features, right context, and tokens that never depend on them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from adaverify_contracts import BlockDrafter, EngineError
from adaverify_engine import Engine, Sampling
from adaverify_engine.drafters import ReadingDrafter
from adaverify_engine.executor import Executor
from adaverify_engine.profiling import grid_for, profile_engine

MODES = ("none", "fixed", "adaptive")


def run(engine, prompts, sampling):
    ids = [engine.add(prompt, sampling) for prompt in prompts]
    done = engine.run()
    return [done[request] for request in ids]


def block_of(engine):
    return engine.drafter._block


def require_oracle(tiny, model, prompts, done, count):
    for prompt, completion in zip(prompts, done, strict=True):
        expected = tiny.greedy(model, prompt, count)
        same = [a == b for a, b in zip(completion.tokens, expected, strict=True)]
        assert all(same) or completion.gaps[same.index(False)] < 1e-4


def context_of(model, tokens):
    """Return features [T, F], keys and values of layer 1 of a whole sequence, computed at once."""
    kept = {}

    def attend(layer, query, key, value):
        kept[layer] = (key, value)
        key, value = (part.expand(-1, model.heads, -1).transpose(0, 1) for part in (key, value))
        out = torch.nn.functional.scaled_dot_product_attention(
            query.transpose(0, 1), key, value, is_causal=True
        )
        return out.transpose(0, 1)

    ids = torch.tensor(tokens)
    _, features = model.forward_tapped(ids, torch.arange(len(ids)), attend, (1, 2))
    return features, *kept[1]


def require_reads(model, block, prompts, done):
    """Every row that the drafter was asked for shows the whole sequence's own features and context."""
    texts = [[*prompt, *one.tokens] for prompt, one in zip(prompts, done, strict=True)]
    known = [(text, *context_of(model, text)) for text in texts]
    rows = 0
    for features, tokens, positions, query, seen in block.calls:
        query, seen = (part.view(len(tokens), block.queries, model.heads, 16) for part in (query, seen))
        for row, at in enumerate(positions.tolist()):
            if not at:
                continue  # padding
            rows += 1
            matching = [
                (keys[:at], values[:at])
                for text, read, keys, values in known
                if at < len(text)
                and text[at] == tokens[row]
                and torch.allclose(read[at - 1], features[row], atol=1e-4)
            ]
            assert matching, f"features at position {at} belong to no request"
            looks = [torch.allclose(_look(query[row], *kv), seen[row], atol=1e-4) for kv in matching]
            assert any(looks), f"the context at position {at} is another"
    return rows


def _look(query, keys, values):
    scores = torch.einsum("qhd,lkd->hql", query, keys) * 16**-0.5
    return torch.einsum("hql,lkd->qhd", scores.softmax(-1), values)


def test_the_tiny_block_keeps_the_contract(make_engine, tiny):
    engine = make_engine("fixed", drafter=tiny.Block)
    assert isinstance(block_of(engine), BlockDrafter)
    assert isinstance(engine.drafter, ReadingDrafter)


@pytest.mark.parametrize("concurrency", [1, 4, 16])
def test_the_three_modes_emit_the_oracles_tokens(make_engine, tiny, concurrency):
    """Greedy float32 text does not depend on what a drafter that reads the target proposes."""
    prompts, model = tiny.prompts(max(concurrency, 6)), tiny.Decoder()
    for mode in MODES:
        engine = make_engine(mode, model=model, drafter=tiny.Block, max_requests=concurrency)
        done = run(engine, prompts, Sampling(max_tokens=30))
        require_oracle(tiny, model, prompts, done, 30)
        if mode == "none":
            assert not block_of(engine).calls, "nobody asks for drafts in this mode"
        else:
            assert engine.stats.accepted > 20
            assert engine.stats.accepted < engine.stats.verified, "nothing was refused"
        if mode == "adaptive" and concurrency > 1:
            assert 0 < engine.stats.verified < engine.stats.drafted, "nothing was trimmed"


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("mode", ["fixed", "adaptive"])
def test_it_reads_the_last_accepted_position_and_all_before(make_engine, tiny, mode, replayed):
    """In recycled slots, after refused and trimmed drafts, behind prompts in pieces and beside them."""
    prompts, model = tiny.prompts(9), tiny.Decoder()
    engine = make_engine(mode, model=model, drafter=tiny.Block, replayed=replayed, prefill_chunk=7)
    done = run(engine, prompts, Sampling(max_tokens=25))
    require_oracle(tiny, model, prompts, done, 25)
    if replayed:
        # What runs ahead of a request's end reads tokens that nobody was given.
        assert engine.verifier.counters["graph replayed"] > 10
    assert engine.stats.accepted < engine.stats.verified
    rows = require_reads(model, block_of(engine), prompts, extended(tiny, model, prompts, done))
    assert rows > 30


def extended(tiny, model, prompts, done):
    """Return completions with the tokens that would have come next."""
    return [
        replace(one, tokens=tuple(tiny.greedy(model, prompt, len(one.tokens) + 12)))
        for prompt, one in zip(prompts, done, strict=True)
    ]


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("mode", MODES)
def test_replayed_steps_emit_what_eager_steps_emit(make_engine, tiny, mode, concurrency):
    """The body that a graph captures, one step ahead: tokens are the oracle's and totals the host's."""
    prompts, model = tiny.prompts(7), tiny.Decoder()
    engine = make_engine(mode, model=model, drafter=tiny.Block, replayed=True, max_requests=concurrency)
    done = run(engine, prompts, Sampling(max_tokens=30))
    require_oracle(tiny, model, prompts, done, 30)
    counters = engine.verifier.counters
    assert counters["graph replayed"] > 10
    assert "verified-not-planned" not in counters
    if mode == "adaptive" and concurrency > 1:
        assert 0 < engine.stats.verified < engine.stats.drafted, "nothing was trimmed"
    assert engine.idle and engine.free_pages == engine.options.pool_pages - 1


@pytest.mark.parametrize("concurrency", [1, 4])
def test_it_reads_the_right_features_after_steps_that_drafted_nothing(
    make_engine, tiny, monkeypatch, concurrency
):
    """Drafting-free steps keep what it reads: every later row shows its own sequence, drafts are accepted."""
    prompts, model, asked = tiny.prompts(7), tiny.Decoder(), []
    engine = make_engine("adaptive", model=model, drafter=tiny.Block, replayed=True, max_requests=concurrency)

    def draft_next(requests, kv_tokens):
        asked.append(len(asked) % 7 >= 4)
        return asked[-1], "three steps in seven"

    monkeypatch.setattr(engine.verifier.manager, "draft_next", draft_next)
    block_of(engine).calls.clear()
    done = run(engine, prompts, Sampling(max_tokens=25))
    require_oracle(tiny, model, prompts, done, 25)
    assert engine.verifier.counters["graph replayed: drafting-free"] > 10
    assert engine.stats.accepted > 10
    assert require_reads(model, block_of(engine), prompts, extended(tiny, model, prompts, done)) > 10


def test_replayed_and_eager_steps_draft_the_same(make_engine, tiny):
    """One request, everything verified: features, tokens and positions of every step agree."""
    calls = []
    for replayed in (False, True):
        engine = make_engine("fixed", drafter=tiny.Block, replayed=replayed, max_requests=1)
        block_of(engine).calls.clear()
        run(engine, [[4, 9, 1]], Sampling(max_tokens=40))
        # Before the first real step, capturing ran the block over padding rows.
        calls.append([call for call in block_of(engine).calls if call[2].any()])
    assert len(calls[0]) > 8
    for one, two in zip(*calls, strict=False):
        for left, right in zip(one, two, strict=True):
            torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("replayed", [False, True])
def test_sampled_requests_draw_the_same_tokens_whatever_is_drafted(make_engine, tiny, replayed):
    """Drafts are a function of the prefix: accepted by match, and the draws are those without drafts."""
    prompts, model = tiny.prompts(5), tiny.Decoder()
    sampling = Sampling(temperature=0.7, max_tokens=24, seed=3)
    plain = run(make_engine("none", model=model), prompts, sampling)
    for mode in ("fixed", "adaptive"):
        engine = make_engine(mode, model=model, drafter=tiny.Block, replayed=replayed)
        assert [one.tokens for one in run(engine, prompts, sampling)] == [one.tokens for one in plain]
        assert engine.stats.accepted > 0
        told = {heat for call in block_of(engine).temperatures for heat in call}
        assert any(abs(heat - 0.7) < 1e-6 for heat in told), (
            "scores are about the law that the drafts will meet"
        )


@pytest.mark.parametrize("replayed", [False, True])
def test_the_shortest_requests_and_the_end_of_the_context(make_engine, tiny, replayed):
    """One prompt token, one new token, and an output that the model's length cuts."""
    model = tiny.Decoder()
    engine = make_engine("fixed", model=model, drafter=tiny.Block, replayed=replayed, max_model_len=32)
    cases = [([7], 1), ([7], 9), ([3] * 31, 1), (list(range(20)), 12), ([5] * 25, 90)]
    ids = [engine.add(prompt, Sampling(max_tokens=count)) for prompt, count in cases]
    done = engine.run()
    for request, (prompt, count) in zip(ids, cases, strict=True):
        count = min(count, 32 - len(prompt))
        require_oracle(tiny, model, [prompt], [done[request]], count)


def test_a_slot_shows_nothing_of_its_former_request(make_engine, tiny):
    """Its features are gone when the next request starts, before that one's prompt was computed."""
    engine = make_engine("fixed", drafter=tiny.Block, max_requests=1)
    run(engine, [[1, 2, 3]], Sampling(max_tokens=8))
    assert engine.drafter.features[0].any()
    engine.drafter.start(0, [4])
    assert not engine.drafter.features[0].any()


def test_a_model_that_raises_leaves_the_features_as_they_were(make_engine, tiny):
    """In a prefill, a mixed and a decode step; the step that is tried again reads what the first one read."""

    class Broken(tiny.Decoder):
        passes = 0

        def forward_tapped(self, tokens, positions, attend, taps):
            Broken.passes += 1
            out = super().forward_tapped(tokens, positions, attend, taps)
            if Broken.passes in (1, 2, 5, 9, 10):
                raise RuntimeError("the pass was lost after it had written its KV")
            return out

    model, prompts = Broken(), tiny.prompts(7)
    engine = make_engine("fixed", model=model, drafter=tiny.Block)
    ids = [engine.add(prompt, Sampling(max_tokens=20)) for prompt in prompts]
    raised = 0
    while not engine.idle:
        try:
            engine.step()
        except RuntimeError:
            raised += 1
    assert raised == 5
    done = engine.take()
    whole = tiny.Decoder()
    completions = [done[request] for request in ids]
    require_oracle(tiny, whole, prompts, completions, 20)
    assert require_reads(whole, block_of(engine), prompts, completions) > 20


def test_a_block_that_raises_costs_drafts_and_no_request(make_engine, tiny, monkeypatch):
    """Twice, then it goes on; every token is the oracle's and each failure is counted."""
    model, prompts = tiny.Decoder(), tiny.prompts(5)
    engine = make_engine("fixed", model=model, drafter=tiny.Block)
    block, calls = block_of(engine), []
    inner = block.block

    def failing(*arguments):
        calls.append(1)
        if len(calls) in (2, 4):
            raise RuntimeError("out of memory")
        return inner(*arguments)

    monkeypatch.setattr(block, "block", failing)
    require_oracle(tiny, model, prompts, run(engine, prompts, Sampling(max_tokens=20)), 20)
    assert engine.verifier.counters["drafter-raised"] == 2
    assert engine.stats.accepted > 0


def test_drafts_outside_the_vocabulary_are_refused_by_the_target(make_engine, tiny):
    """An id that no embedding has never reaches the model, in eager and in replayed steps."""

    class Outside(tiny.Block):
        def block(self, *arguments):
            drafts, scores = super().block(*arguments)
            return drafts + 7 * tiny.vocabulary, scores

    model, prompts = tiny.Decoder(), tiny.prompts(4)
    for replayed in (False, True):
        engine = make_engine("fixed", model=model, drafter=Outside, replayed=replayed)
        require_oracle(tiny, model, prompts, run(engine, prompts, Sampling(max_tokens=12)), 12)
        assert replayed or engine.verifier.counters["drafter-nonsense"] > 5


def test_a_model_without_taps_is_refused(make_engine, tiny):
    class Closed:
        def __init__(self):
            inner = tiny.Decoder()
            self.geometry, self.logits, self.forward = inner.geometry, inner.logits, inner.forward

    with pytest.raises(EngineError, match="does not show them"):
        make_engine("fixed", model=Closed(), drafter=tiny.Block)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"taps": (0, 1)}, "layers that the model"),
        ({"taps": (1, 3)}, "layers that the model"),
        ({"taps": (2, 1)}, "layers that the model"),
        ({"taps": ()}, "layers that the model"),
    ],
)
def test_a_drafter_that_does_not_fit_is_refused(make_engine, tiny, changes, words):
    class Odd(tiny.Block):
        def __init__(self, limits, device):
            super().__init__(limits, device)
            for name, value in changes.items():
                setattr(self, name, value)

    with pytest.raises(EngineError, match=words):
        make_engine("fixed", drafter=Odd)


@pytest.mark.parametrize("replayed", [False, True])
def test_its_drafting_is_priced(make_engine, tiny, replayed):
    """Eagerly as a part of its own, in replays within the step; requests run as before."""
    engine = make_engine(
        "fixed", drafter=tiny.Block, replayed=replayed, max_requests=2, draft_tokens=2, max_model_len=32
    )
    block_of(engine).calls.clear()
    table = profile_engine(engine, grid_for(engine.options, repeats=1, ladder=engine.verifier.tiers))
    assert block_of(engine).calls
    assert bool(table.draft) is not replayed
    assert engine.idle
    model = tiny.Decoder()
    require_oracle(tiny, model, [[1, 2, 3]], run(engine, [[1, 2, 3]], Sampling(max_tokens=10)), 10)


@pytest.mark.parametrize("replayed", [False, True])
def test_a_block_may_look_with_more_queries_than_a_step_has(make_engine, tiny, replayed):
    """K = 2 of a block of 7: the target's attention would have room for 3 queries a request."""

    class Wide(tiny.Block):
        def __init__(self, limits, device):
            super().__init__(tiny.options(draft_tokens=7).limits, device)

        def block(self, *arguments):
            drafts, scores = super().block(*arguments)
            return drafts[:, :2], scores[:, :2]

    model, prompts = tiny.Decoder(), tiny.prompts(5)
    engine = make_engine("fixed", model=model, drafter=Wide, replayed=replayed, draft_tokens=2)
    done = run(engine, prompts, Sampling(max_tokens=16))
    require_oracle(tiny, model, prompts, done, 16)
    assert require_reads(model, block_of(engine), prompts, extended(tiny, model, prompts, done)) > 10


def test_drafting_and_keeping_read_nothing_on_the_host(tiny):
    """On the meta device there are shapes and no values: whatever asked for one would raise."""
    options, device = tiny.options(device="meta"), torch.device("meta")
    executor = Executor(tiny.Decoder().to(device), options)
    block = tiny.Block(options.limits, device)
    block.remembers = False
    drafter = ReadingDrafter(block, executor, reads=True)
    rows = torch.empty(3, dtype=torch.int32, device=device)
    drafter.draft(rows)
    starts = torch.empty(4, dtype=torch.int32, device=device)
    drafter.keep_accepted(torch.empty(18, 64, device=device), starts, rows, rows)
    assert {tensor.device for tensor in (drafter.features, drafter.state.drafts)} == {device}
    with pytest.raises(RuntimeError, match="meta"):
        rows[0].item()


def test_a_block_that_cannot_be_captured_is_named_and_steps_run_eagerly(make_engine, tiny, monkeypatch):
    """Every size fails with its cause; the engine serves without drafts, and says so."""

    class Broken(tiny.Block):
        def block(self, *arguments):
            raise RuntimeError("no such kernel")

    model, prompts = tiny.Decoder(), tiny.prompts(3)
    with monkeypatch.context() as patch:
        # The fixture insists on captured steps; here there are none.
        patch.setattr(Engine, "capture", lambda engine: SimpleNamespace(captured=True, failed=()))
        engine = make_engine("fixed", model=model, drafter=Broken, replayed=True)
    report = engine.capture()
    assert not report.captured
    assert {"no such kernel" in failure.cause for failure in report.failed} == {True}
    require_oracle(tiny, model, prompts, run(engine, prompts, Sampling(max_tokens=12)), 12)
    assert engine.verifier.counters["drafter-raised"] == 3
    assert engine.verifier.counters["drafter-disabled"] > 0
