"""Faults of operation: empty and extreme batches, pages, slots, stops, traces of drafts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adaverify_contracts import EngineError
from adaverify_engine import Engine, FinishReason, Sampling


def test_no_requests_is_an_ordinary_step(make_engine):
    """Nothing to do is no event, no step and no error (vllm #54011: the drain down to zero)."""
    engine = make_engine()
    assert engine.step() == []
    assert engine.run() == {}
    assert engine.stats.steps == 0


def test_one_request_drains_to_zero_and_load_returns(make_engine):
    """After the last request ends the engine is idle, and starts again."""
    engine = make_engine()
    for _ in range(3):
        request = engine.add([1, 2], Sampling(max_tokens=8))
        assert len(engine.run()[request].tokens) == 8
        assert engine.idle
        assert engine.step() == []


def test_one_prompt_token_and_one_output_token(make_engine):
    """The smallest request ends with its prefill and never decodes."""
    engine = make_engine()
    request = engine.add([5], Sampling(max_tokens=1))
    done = engine.run()[request]
    assert (len(done.tokens), done.steps, done.reason) == (1, 0, FinishReason.LENGTH)


@pytest.mark.parametrize("mode", ["none", "fixed", "adaptive"])
def test_without_draft_tokens_nothing_is_drafted(make_engine, tiny, mode):
    """K = 0 is plain decoding in every mode; no count goes below 0 (vllm #48494)."""
    engine = make_engine(mode, draft_tokens=0)
    request = engine.add([1, 2, 3], Sampling(max_tokens=10))
    assert list(engine.run()[request].tokens) == tiny.greedy(tiny.Decoder(), [1, 2, 3], 10)
    assert engine.stats.drafted == engine.stats.verified == 0


def test_request_larger_than_the_pool_is_refused_with_numbers(make_engine):
    """A request that could never start is an error at once, and leaves nothing behind."""
    engine = make_engine(num_pages=6)
    with pytest.raises(EngineError, match=r"20 prompt \+ 10 output tokens = 8 pages of 4.*at most 5 pages"):
        engine.add(range(20), Sampling(max_tokens=10))
    assert engine.idle
    request = engine.add([1] * 11, Sampling(max_tokens=10))
    assert len(engine.run()[request].tokens) == 10


def test_exhausted_pages_make_requests_wait_in_order(make_engine, tiny):
    """Requests that do not fit now wait, nobody is thrown out, and all pages come back."""
    engine = make_engine(num_pages=1 + 2 * 6)
    prompts = tiny.prompts(7, seed=3)
    prompts = [prompt[:9] for prompt in prompts]
    ids = [engine.add(prompt, Sampling(max_tokens=12)) for prompt in prompts]
    seen = []
    while not engine.idle:
        seen += [event.request for event in engine.step() if event.request not in seen]
    assert seen == ids
    done = engine.take()
    for request, prompt in zip(ids, prompts, strict=True):
        assert list(done[request].tokens) == tiny.greedy(tiny.Decoder(), prompt, 12)
    assert engine.free_pages == 12


def test_recycled_slots_do_not_see_their_predecessor(make_engine, tiny):
    """A slot's next request starts from its own prompt: KV, drafts and generation (vllm #47930, #48459)."""
    engine = make_engine("fixed", max_requests=2)
    prompts = tiny.prompts(9, seed=5)
    ids = [engine.add(prompt, Sampling(max_tokens=7 + number)) for number, prompt in enumerate(prompts)]
    done = engine.run()
    for number, (request, prompt) in enumerate(zip(ids, prompts, strict=True)):
        assert list(done[request].tokens) == tiny.greedy(tiny.Decoder(), prompt, 7 + number)


def test_stale_cache_contents_are_never_read(make_engine, tiny):
    """Lengths alone roll KV back: huge values in every unwritten place change nothing."""
    engine = make_engine("fixed", max_requests=3)
    engine.executor.cache.data.fill_(1e6)
    prompts = tiny.prompts(5, seed=2)
    ids = [engine.add(prompt, Sampling(max_tokens=20)) for prompt in prompts]
    done = engine.run()
    for request, prompt in zip(ids, prompts, strict=True):
        assert list(done[request].tokens) == tiny.greedy(tiny.Decoder(), prompt, 20)


def test_drafts_that_cannot_be_emitted_are_not_scheduled(make_engine):
    """Drafts stop short of max_tokens and max_model_len; the table covers the rest (nano-vllm #190)."""
    engine = make_engine("fixed", max_model_len=24, max_requests=1)
    request = engine.add([3] * 10, Sampling(max_tokens=500))
    while not engine.idle:
        engine.step()
        assert engine.stats.discarded == 0
    done = engine.take()[request]
    assert (len(done.tokens), done.reason) == (14, FinishReason.LENGTH)


def test_admitted_is_what_the_plan_says(make_engine, tiny):
    """What ran equals what was planned, step by step (sglang #30204, vllm #51510)."""
    engine = make_engine("adaptive")
    for prompt in tiny.prompts(4):
        engine.add(prompt, Sampling(max_tokens=30))
    engine.run()
    counters = engine.verifier.counters
    assert not {"verified-not-planned", "drafted-not-scheduled"} & set(counters), counters


def test_query_tokens_of_the_model_are_exactly_those_planned(make_engine, tiny):
    """Trimming shortens the model pass itself; it is not applied after full verification (sglang #30204)."""
    model = tiny.Decoder()
    engine = make_engine("none", model=model)
    engine.add([1, 2, 3, 4], Sampling(max_tokens=9))
    engine.run()
    assert model.calls == [4] + [1] * 8


class Trace:
    """A drafter that proposes nonsense and keeps what it is told."""

    def __init__(self, width: int) -> None:
        self.width, self.told = width, {}

    def start(self, slot, prompt):
        self.told[slot] = list(prompt)

    def propose(self, slots, room):
        from adaverify_contracts import DraftBatch

        tokens = torch.full((len(slots), self.width), 49)
        tokens[torch.arange(self.width) >= torch.from_numpy(room)[:, None]] = -1
        return DraftBatch(tokens, room.copy(), torch.zeros(tokens.shape))

    def extend(self, slot, tokens):
        self.told[slot] += tokens

    def stop(self, slot):
        pass


def test_drafts_not_emitted_leave_no_trace(make_engine, tiny):
    """Refused and trimmed drafts reach no text, gap, log-probability, stop check or drafter (maths 5.6)."""
    prompt, model = [2, 9, 4], tiny.Decoder()
    expected = tiny.greedy(model, prompt, 20)
    assert 49 not in expected
    for mode in ("fixed", "adaptive"):
        drafter = Trace(5)
        engine = make_engine(mode, drafter=drafter, max_requests=1)
        request = engine.add(prompt, Sampling(max_tokens=20, logprobs=True, stop_tokens=(49,)))
        done = engine.run()[request]
        assert list(done.tokens) == expected
        assert drafter.told[0] == prompt + expected[:-1]
        logits = tiny.logits(model, prompt + expected)[len(prompt) - 1 : -1]
        best = logits.log_softmax(-1).gather(1, torch.tensor(expected)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(done.logprobs), best, rtol=0, atol=1e-4)
        two = logits.topk(2).values
        torch.testing.assert_close(torch.tensor(done.gaps), two[:, 0] - two[:, 1], rtol=0, atol=1e-4)


class Knowing(Trace):
    """A drafter that knows what comes, so that every draft is accepted."""

    def __init__(self, width: int, text: list[int]) -> None:
        super().__init__(width)
        self.text = text

    def propose(self, slots, room):
        batch = super().propose(slots, room)
        for row, slot in enumerate(slots):
            at = len(self.told[slot])
            batch.tokens[row, : room[row]] = torch.tensor(self.text[at : at + room[row]])
        return batch


def test_stop_token_ends_inside_accepted_drafts(make_engine, tiny):
    """Tokens decided after a stop token are cut, whichever mode found them."""
    prompt, model = [1, 2, 3], tiny.Decoder()
    expected = tiny.greedy(model, prompt, 20)
    # The first token comes from the prefill and 6 from the first decode step: the stop token is among them.
    end = next(at for at in range(2, 5) if expected[at] not in expected[:at]) + 1
    for mode in ("none", "fixed"):
        drafter = Knowing(5, prompt + expected)
        engine = make_engine(mode, model=model, drafter=drafter, max_requests=1)
        request = engine.add(prompt, Sampling(max_tokens=20, stop_tokens=(expected[end - 1],)))
        done = engine.run()[request]
        assert list(done.tokens) == expected[:end]
        assert len(done.gaps) == end
        assert done.reason is FinishReason.STOP_TOKEN
        assert engine.stats.discarded == (7 - end if mode == "fixed" else 0)


def test_model_stop_tokens_hold_unless_ignored(make_engine, tiny):
    """The model's own stop tokens end a request; benchmarks may run past them."""
    prompt = [1, 2, 3]
    expected = tiny.greedy(tiny.Decoder(), prompt, 30)
    model = tiny.Decoder(stop_tokens=(expected[4],))
    engine = make_engine("fixed", model=model)
    stopped = engine.add(prompt, Sampling(max_tokens=30))
    ignoring = engine.add(prompt, Sampling(max_tokens=30, ignore_stop_tokens=True))
    done = engine.run()
    assert done[stopped].reason is FinishReason.STOP_TOKEN
    assert len(done[stopped].tokens) == expected.index(expected[4]) + 1
    assert list(done[ignoring].tokens) == expected


def test_events_stream_the_completion(make_engine, tiny):
    """Tokens and text of the events, joined, are the completion; the last event names the reason."""
    engine = make_engine("fixed", max_requests=2)
    ids = [engine.add(prompt, Sampling(max_tokens=25)) for prompt in tiny.prompts(4)]
    events = []
    while not engine.idle:
        events += engine.step()
    done = engine.take()
    assert engine.take() == {}
    for request in ids:
        mine = [event for event in events if event.request == request]
        assert sum((event.tokens for event in mine), ()) == done[request].tokens
        assert "".join(event.text for event in mine) == done[request].text
        assert [event.finished for event in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1].finished is FinishReason.LENGTH


def test_stop_text_spans_tokens_and_is_cut(make_engine, tiny):
    """A stop text made of pieces of several tokens ends the request in every mode with the same text."""
    prompt = [1, 2, 3]
    tokens = tiny.greedy(tiny.Decoder(), prompt, 40)
    text = tiny.Tokenizer().decode(tokens)
    stop = text[17:20]
    for mode in ("none", "fixed", "adaptive"):
        engine = make_engine(mode, max_requests=1)
        request = engine.add(prompt, Sampling(max_tokens=40, stop_texts=(stop, "never")))
        streamed = ""
        while not engine.idle:
            streamed += "".join(event.text for event in engine.step())
        done = engine.take()[request]
        assert done.reason is FinishReason.STOP_TEXT
        assert done.text == streamed == text[: text.index(stop)]


@pytest.mark.parametrize("prompt", [[], [50], [-1], [1] * 96])
def test_bad_prompts_are_refused(make_engine, prompt):
    """Empty, out of the vocabulary or too long: an error that says which."""
    with pytest.raises(EngineError, match="prompt"):
        make_engine().add(prompt)


def test_logits_that_are_not_finite_are_an_error(make_engine, tiny):
    """A broken model does not turn into quiet nonsense."""
    model = tiny.Decoder()
    model.head[:] = float("nan")
    engine = make_engine("none", model=model)
    engine.add([1, 2])
    with pytest.raises(EngineError, match="not finite"):
        engine.run()


def test_limits_of_verifier_and_engine_must_agree(make_engine, tiny):
    """An engine is refused a verifier with other limits, both shown."""
    from adaverify_contracts import LoadedModel
    from adaverify_engine import Engine

    engine = make_engine()
    with pytest.raises(EngineError, match="other limits"):
        Engine(
            LoadedModel(tiny.Decoder(), tiny.Tokenizer()),
            engine.verifier,
            Trace(5),
            tiny.options(max_requests=7),
        )
    with pytest.raises(EngineError, match="longer than tiny"):
        make_engine(max_model_len=512)


@pytest.mark.parametrize(
    "prompt", ["hello", "123", [1.7, 2.9], ["1", "2"], [True, False], {1: 2}, [float("nan")], None, 5, [[1]]]
)
def test_a_prompt_that_is_no_sequence_of_ids_is_refused(make_engine, prompt):
    """Nothing is cast in silence: text of digits is no prompt of ids."""
    engine = make_engine("none")
    with pytest.raises(EngineError, match="no sequence of token ids"):
        engine.add(prompt)
    assert engine.idle


def test_prompts_may_be_arrays(make_engine):
    """NumPy arrays and tensors of one dimension hold ids as a list does."""
    tokens = []
    for prompt in ([1, 2, 3], (1, 2, 3), np.array([1, 2, 3]), torch.tensor([1, 2, 3]), range(1, 4)):
        engine = make_engine("none")
        request = engine.add(prompt, Sampling(max_tokens=4))
        tokens.append(engine.run()[request].tokens)
    assert len(set(tokens)) == 1


def test_sampling_of_another_type_is_refused(make_engine):
    """A dictionary of options is no ``Sampling``."""
    with pytest.raises(EngineError, match="sampling is of another type"):
        make_engine("none").add([1, 2], {"temperature": 1})


@pytest.mark.parametrize("part", ["model", "verifier", "drafter", "options"])
def test_parts_of_another_type_are_refused(make_engine, part):
    """Named when the engine is made, not when the first step needs them."""
    good = make_engine("none")
    parts = {"model": good.model, "verifier": good.verifier, "drafter": good.drafter, "options": good.options}
    for wrong in (None, "n-gram", {}):
        with pytest.raises(EngineError, match=f"{part} is of another type"):
            Engine(**(parts | {part: wrong}))


def test_a_cache_that_does_not_fit_names_its_size(make_engine):
    """The allocator's own error says neither pages nor what to lower."""
    with pytest.raises(EngineError, match="KV cache does not fit"):
        make_engine("none", num_pages=2**31 - 1)


@pytest.mark.parametrize("extreme", [{"temperature": 1e-6}, {"temperature": 1e6}, {"top_p": 1e-6}])
def test_the_ends_of_the_sampling_ranges_draw_tokens(make_engine, extreme):
    """The smallest temperature and nucleus that are allowed still draw tokens of the vocabulary."""
    engine = make_engine("none")
    request = engine.add([1, 2, 3], Sampling(**({"temperature": 1.0} | extreme), max_tokens=8))
    tokens = engine.run()[request].tokens
    assert len(tokens) and min(tokens) >= 0


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_ends_of_the_penalty_ranges_leave_batch_mates_alone(make_engine, sign):
    """Penalties at their bounds are finite, and a greedy request beside them is what it is alone."""
    alone = make_engine("none")
    first = alone.add([1, 2, 3], Sampling(max_tokens=8))
    expected = alone.run()[first].tokens
    engine = make_engine("none")
    plain = engine.add([1, 2, 3], Sampling(max_tokens=8))
    edge = Sampling(
        max_tokens=8,
        presence_penalty=sign * 1e3,
        frequency_penalty=sign * 1e3,
        repetition_penalty=1e3**sign,
    )
    other = engine.add([3, 2, 1], edge)
    done = engine.run()
    assert done[plain].tokens == expected
    assert len(done[other].tokens) >= 1
