"""A draft that was refused or not admitted leaves no trace, in a run of the real engine (maths section 5.6).

Penalties have their own: ``test_penalties.py``.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adaverify_contracts import DraftBatch
from adaverify_engine import FinishReason, Sampling
from adaverify_engine.drafters import LookupDrafter, NgramDrafter

TRIMMING = ("fixed", "adaptive")


class Misleading:
    """Drafts what the request will emit one place too early: refused now, right later."""

    def __init__(self, width, text):
        self.width, self.text, self.at = width, text, 0

    def start(self, slot, prompt):
        self.at = len(prompt)

    def propose(self, slots, room):
        tokens = torch.full((1, self.width), -1)
        for k in range(int(room[0])):
            tokens[0, k] = self.text[self.at + k + 1]
        return DraftBatch(tokens, room.copy(), torch.linspace(2, -2, self.width)[None].clone())

    def extend(self, slot, tokens):
        self.at += len(tokens)

    def stop(self, slot):
        pass


def misled(make_engine, tiny, mode, prompt, count):
    """Return an engine whose drafts are wrong, with the right text."""
    model = tiny.Decoder()
    text = tiny.greedy(model, prompt, count + 8)
    drafter = Misleading(5, prompt + text)
    return make_engine(mode, model=model, drafter=drafter, max_requests=1), text[:count]


def spoil(engine, value):
    """Overwrite every place of the cache that holds no valid KV of a running request."""
    cache, size = engine.executor.cache, engine.options.page_size
    keep = torch.zeros(cache.data.shape[2], dtype=torch.bool)
    scheduler = engine._scheduler
    for request in scheduler.owners(np.flatnonzero(scheduler.running.live)):
        at = torch.arange(request.computed)
        pages = torch.from_numpy(scheduler.block_table[request.slot]).long()
        keep[pages[at // size] * size + at % size] = True
    cache.data[:, :, ~keep] = value


@pytest.mark.parametrize("mode", TRIMMING)
def test_none_in_the_kv_cache(make_engine, tiny, mode):
    """All KV but that of emitted tokens is overwritten with huge values before every step: nobody notices."""
    model = tiny.Decoder()
    engine = make_engine(mode, model=model, max_requests=3)
    prompts = tiny.prompts(4, seed=4)
    ids = [engine.add(prompt, Sampling(max_tokens=24)) for prompt in prompts]
    while not engine.idle:
        spoil(engine, 1e6)
        engine.step()
    done = engine.take()
    for request, prompt in zip(ids, prompts, strict=True):
        assert list(done[request].tokens) == tiny.greedy(model, prompt, 24)
    assert engine.stats.wasted > 5, "no draft was refused"


@pytest.mark.parametrize("mode", TRIMMING)
def test_kept_kv_is_that_of_the_emitted_tokens(make_engine, tiny, mode):
    """Rejected drafts were written and rolled back: what stays is what plain decoding writes."""
    prompt, caches = [3, 1, 4], []
    for engine in (misled(make_engine, tiny, mode, prompt, 20)[0], make_engine("none", max_requests=1)):
        request = engine.add(prompt, Sampling(max_tokens=20))
        engine.step()
        running = engine._scheduler.work().decode[0]
        pages = torch.from_numpy(running.pages.copy()).long()
        while not engine.idle:
            engine.step()
        length = len(prompt) + len(engine.take()[request].tokens) - 1
        at, size = torch.arange(length), engine.options.page_size
        caches.append(engine.executor.cache.data[:, :, pages[at // size] * size + at % size])
    torch.testing.assert_close(caches[0], caches[1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("mode", TRIMMING)
def test_none_in_the_n_gram_tables(make_engine, tiny, mode):
    """After every step the tables are those of a drafter that was told the emitted tokens alone."""
    engine = make_engine(mode, max_requests=2)
    limits, prompts = engine.options.limits, tiny.prompts(3, seed=6)
    ids = [engine.add(prompt, Sampling(max_tokens=30)) for prompt in prompts]
    compared = 0
    while not engine.idle:
        engine.step()
        for request in engine._scheduler.work().decode:
            fresh = NgramDrafter(limits, torch.device("cpu"))
            fresh.start(0, request.tokens)
            told, own = engine.drafter._slots[request.slot], fresh._slots[0]
            assert (told.tokens, told.index) == (own.tokens, own.index)
            compared += 1
    assert set(engine.take()) == set(ids)
    assert compared > 20
    assert engine.stats.wasted > 5


@pytest.mark.parametrize("replayed", [False, True])
def test_none_in_the_device_history_of_prompt_lookup(make_engine, tiny, replayed):
    """The device's history holds the emitted tokens; a replayed step is ahead by accepted ones alone."""
    engine = make_engine("adaptive", max_requests=2, replayed=replayed, drafter=None)
    if not replayed:
        engine = make_engine(
            "adaptive", max_requests=2, drafter=LookupDrafter(engine.options.limits, torch.device("cpu"))
        )
    model, prompts = tiny.Decoder(), tiny.prompts(2, seed=7)
    for prompt in prompts:
        engine.add(prompt, Sampling(max_tokens=30))
    texts = [prompt + tiny.greedy(model, prompt, 60) for prompt in prompts]
    for _ in range(7):
        engine.step()
        state = engine.drafter.state
        for request in engine._scheduler.work().decode:
            length = int(state.length[request.slot])
            assert length >= len(request.tokens)
            history = state.history[request.slot, :length].tolist()
            assert history in [text[:length] for text in texts]
    assert engine.stats.wasted > 0


@pytest.mark.parametrize("mode", TRIMMING)
def test_none_in_log_probabilities_and_gaps(make_engine, tiny, mode):
    """One value for each emitted token, of the model's own law behind the emitted tokens."""
    prompt = [2, 9, 4]
    engine, text = misled(make_engine, tiny, mode, prompt, 20)
    request = engine.add(prompt, Sampling(max_tokens=20, logprobs=True))
    done = engine.run()[request]
    assert list(done.tokens) == text
    logits = tiny.logits(tiny.Decoder(), prompt + text)[len(prompt) - 1 : -1]
    law = logits.log_softmax(-1).gather(1, torch.tensor(text)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(done.logprobs), law, rtol=0, atol=1e-4)
    two = logits.topk(2).values
    torch.testing.assert_close(torch.tensor(done.gaps), two[:, 0] - two[:, 1], rtol=0, atol=1e-4)
    assert engine.stats.verified > engine.stats.accepted


def test_log_probabilities_ignore_temperature_and_penalties(make_engine, tiny):
    """They are of the model's own law, as documented, whatever decides the token."""
    prompt, model = [2, 9, 4], tiny.Decoder()
    engine = make_engine("fixed", model=model)
    sampling = Sampling(max_tokens=12, logprobs=True, temperature=0.7, seed=1, presence_penalty=2.0)
    request = engine.add(prompt, sampling)
    done = engine.run()[request]
    logits = tiny.logits(model, prompt + list(done.tokens))[len(prompt) - 1 : -1]
    law = logits.log_softmax(-1).gather(1, torch.tensor(done.tokens)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(done.logprobs), law, rtol=0, atol=1e-4)


@pytest.mark.parametrize("mode", TRIMMING)
@pytest.mark.parametrize("kind", ["token", "text"])
def test_none_in_stop_detection(make_engine, tiny, mode, kind):
    """A stop token or stop text that is drafted, verified and refused ends nothing until it is emitted."""
    prompt, count = [1, 2, 3], 20
    engine, text = misled(make_engine, tiny, mode, prompt, count)
    # The first token that is new late in the text: drafted one place early, in the step before at the latest.
    end = max(at for at in range(3, count) if text[at] not in text[:at])
    names = tiny.Tokenizer.names
    stops = {"token": {"stop_tokens": (text[end],)}, "text": {"stop_texts": (names[text[end]],)}}[kind]
    request = engine.add(prompt, Sampling(max_tokens=count, **stops))
    done = engine.run()[request]
    assert list(done.tokens) == text[: end + 1]
    assert done.reason is {"token": FinishReason.STOP_TOKEN, "text": FinishReason.STOP_TEXT}[kind]
    assert engine.stats.verified > engine.stats.accepted
