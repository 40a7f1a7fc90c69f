"""What a model, a tokenizer or a drafter returns, held against its contract before it gives a wrong token."""

from __future__ import annotations

import pytest
import torch

from adaverify_contracts import DraftBatch, EngineError
from adaverify_engine import FinishReason, Sampling
from adaverify_engine.drafters import NgramDrafter
from adaverify_testing import TinyModel


def run_and_compare(engine, tiny, prompts, count=30):
    """Run to the end; every request must match the oracle."""
    ids = [engine.add(prompt, Sampling(max_tokens=count)) for prompt in prompts]
    done = engine.run()
    for request, prompt in zip(ids, prompts, strict=True):
        assert list(done[request].tokens) == tiny.greedy(tiny.Decoder(), prompt, count)


def test_ids_behind_what_is_scheduled_are_no_drafts(make_engine, tiny):
    """Whatever stands there is not verified, and says nothing of the drafter."""

    class Short(NgramDrafter):
        def propose(self, slots, room):
            batch = super().propose(slots, room)
            behind = torch.arange(5) >= torch.from_numpy(batch.scheduled)[:, None]
            tokens = torch.where(behind, -99, batch.tokens)
            return DraftBatch(tokens, batch.scheduled, batch.scores)

    engine = make_engine("fixed", drafter=Short(tiny.options().limits, torch.device("cpu")))
    run_and_compare(engine, tiny, tiny.prompts(4))
    assert engine.stats.accepted > 0
    assert not engine.verifier.counters


def test_a_drafter_that_returns_no_batch_is_nonsense(make_engine, tiny):
    class Odd(NgramDrafter):
        def propose(self, slots, room):
            return None

    engine = make_engine("fixed", drafter=Odd(tiny.options().limits, torch.device("cpu")))
    run_and_compare(engine, tiny, tiny.prompts(4))
    assert engine.verifier.counters["drafter-nonsense"] == 3


@pytest.mark.parametrize(
    ("method", "change", "words"),
    [
        ("logits", lambda found: None, "NoneType"),
        ("logits", lambda found: found[1:], "50), torch.float32 on cpu"),
        ("logits", lambda found: found[:, :5], "5), torch.float32 on cpu"),
        ("logits", lambda found: found.to(torch.bfloat16), "torch.bfloat16"),
        ("logits", lambda found: found.to("meta"), "on meta"),
        ("forward", lambda found: found.T, "torch.float32 on cpu"),
        ("forward", lambda found: (found, found), "tuple"),
        ("forward", lambda found: found.int(), "torch.int32"),
    ],
)
@pytest.mark.parametrize("mode", ["none", "fixed"])
def test_a_model_that_returns_nonsense_is_refused(make_engine, tiny, method, change, words, mode):
    """Logits of five ids for 50 were taken, and gave other tokens in every mode alike."""
    model = tiny.Decoder()
    right = getattr(model, method)
    setattr(model, method, lambda *arguments: change(right(*arguments)))
    engine = make_engine(mode, model=model)
    engine.add(tiny.prompts(1)[0], Sampling(max_tokens=9))
    with pytest.raises(EngineError, match="of its contract") as caught:
        engine.run()
    assert words in str(caught.value)
    assert engine.take() == {}


@pytest.mark.parametrize("answer", [None, b"abc", 7, [], object()])
@pytest.mark.parametrize("stop_texts", [(), ("xyz",)])
@pytest.mark.parametrize("stream", [True, False])
def test_a_tokenizer_that_has_no_text_ends_its_request(make_engine, tiny, answer, stop_texts, stream):
    """The error says what was returned, and not what became of it inside."""

    class Mute(tiny.Tokenizer):
        def decode(self, tokens):
            return answer

    engine = make_engine("fixed", tokenizer=Mute())
    request = engine.add([2, 9, 4], Sampling(max_tokens=5, stop_texts=stop_texts, stream=stream))
    done = engine.run()[request]
    assert done.reason is FinishReason.FAILED
    assert f"decode returned {type(answer).__name__}; allowed: str" in done.error
    assert engine.verifier.counters["request-failed"] == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokenizer": object()}, "tokenizer: object, which lacks encode, decode, chat"),
        ({"model": object()}, "model: object, which lacks geometry, forward, logits"),
        ({"model": TinyModel}, "model: type, which lacks"),
    ],
)
def test_an_engine_is_not_made_of_parts_that_lack_something(make_engine, tiny, change, words):
    with pytest.raises(EngineError, match="no target with a tokenizer") as caught:
        make_engine("fixed", **change)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda layer, query, key, value: (layer + 2, query, key, value),
        lambda layer, query, key, value: (str(layer), query, key, value),
        lambda layer, query, key, value: (layer, query[:, :, :3], key, value),
        lambda layer, query, key, value: (layer, query, key[:1].repeat(9, 1, 1), value),
        lambda layer, query, key, value: (layer, query, key, value.double()),
        lambda layer, query, key, value: (layer, query, None, value),
        lambda layer, query, key, value: (layer, query[:, :1].repeat(1, 3, 1), key, value),
    ],
)
def test_a_model_that_attends_with_nonsense_is_refused(make_engine, tiny, change):
    """It was an error inside the engine, and so a fault of ours."""

    class Odd(tiny.Decoder):
        def forward(self, tokens, positions, attend):
            return super().forward(tokens, positions, lambda *passed: attend(*change(*passed)))

    engine = make_engine("fixed", model=Odd())
    engine.add(tiny.prompts(1)[0], Sampling(max_tokens=9))
    with pytest.raises(EngineError, match="called attend with something else") as caught:
        engine.run()
    assert "layer 0 .. 1" in str(caught.value)


@pytest.mark.parametrize("mode", ["none", "fixed", "adaptive"])
def test_a_request_that_fails_in_replayed_steps_is_counted(make_engine, tiny, mode):
    """Its batch mates go on, and the record of the step it ended in has its name."""

    class Poisoned(tiny.Tokenizer):
        def decode(self, tokens):
            return None if 13 in tokens else super().decode(tokens)

    prompts = tiny.prompts(8)
    expected = [tiny.greedy(tiny.Decoder(), prompt, 30) for prompt in prompts]
    hit = sum(13 in tokens for tokens in expected)
    assert 0 < hit < len(prompts), "some must fail and some must not, or nothing is tested"
    engine, records = make_engine(mode, tokenizer=Poisoned(), replayed=True), []
    engine.verifier.add_observer("test", records.append)
    ids = [engine.add(prompt, Sampling(max_tokens=30)) for prompt in prompts]
    done = engine.run()
    engine.verifier.drain()
    assert [done[one].reason for one in ids].count(FinishReason.FAILED) == hit
    assert engine.verifier.counters["graph replayed"] > 5
    assert engine.verifier.counters["request-failed"] == hit
    assert sum(record.fallbacks.count("request-failed") for record in records) == hit


@pytest.mark.parametrize(
    "change",
    [
        lambda drafts, scores: (drafts.float(), scores),
        lambda drafts, scores: (drafts[:, :2], scores[:, :2]),
        lambda drafts, scores: (drafts, scores[:1, :1]),
    ],
)
def test_a_block_of_another_shape_or_type_is_nonsense(make_engine, tiny, change):
    """Refused in eager steps, which go on without drafts; the tokens are the target's."""

    class Odd(tiny.Block):
        def block(self, *arguments):
            return change(*super().block(*arguments))

    engine = make_engine("fixed", drafter=Odd)
    run_and_compare(engine, tiny, tiny.prompts(4), 12)
    assert engine.verifier.counters["drafter-nonsense"] == 3
    assert engine.stats.drafted == 0
