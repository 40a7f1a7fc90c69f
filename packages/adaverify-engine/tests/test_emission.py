"""Tokens are handed out for all rows at once as each request would get them alone, token by token."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import Limits
from adaverify_engine import FinishReason, Sampling
from adaverify_engine.emission import Decided, emit
from adaverify_engine.request import Request
from adaverify_engine.running import Running
from adaverify_engine.text import Detokenizer

LIMITS = Limits(max_requests=6, draft_tokens=3, max_model_len=24, page_size=4)
LETTERS = "abcdefgh"
POISON = 7
"""A token that ``Fragile`` cannot decode."""


class Letters:
    def decode(self, tokens):
        return "".join(LETTERS[token] for token in tokens)


class Fragile(Letters):
    def decode(self, tokens):
        if POISON in tokens:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text")
        return super().decode(tokens)


@dataclass
class Sequential:
    """One request's tokens taken one at a time: the oracle."""

    request: Request
    fragile: bool
    out: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    text: str = ""
    reason: FinishReason | None = None

    def take(self, tokens, gaps):
        """Take one step's tokens; return how many."""
        sampling, stops, before = self.request.sampling, self.request.stop_tokens, len(self.out)
        for token, gap in zip(tokens, gaps, strict=True):
            self.out.append(token)
            self.gaps.append(float("nan") if sampling.temperature else gap)
            if token not in stops:
                self._read(token)
            if self.reason is None and token in stops:
                self.reason = FinishReason.STOP_TOKEN
            if self.reason is None and len(self.out) == self.request.max_output:
                self.reason = FinishReason.LENGTH
            if self.reason is not None:
                break
        # Text that nobody looks for stop texts in is decoded when it is due, and fails then.
        due = sampling.stream or self.reason is not None
        if self.fragile and due and not sampling.stop_texts and self._poisoned():
            self.reason = FinishReason.FAILED
        return len(self.out) - before

    def _poisoned(self):
        last = len(self.out) - (self.reason is FinishReason.STOP_TOKEN)
        return POISON in self.out[:last]

    def _read(self, token):
        texts = self.request.sampling.stop_texts
        if self.fragile and token == POISON:
            if texts:
                self.reason = FinishReason.FAILED
            return
        self.text += LETTERS[token]
        found = [self.text.index(text) for text in texts if text in self.text]
        if found:
            self.text, self.reason = self.text[: min(found)], FinishReason.STOP_TEXT


def request_of(number, slot, sampling, most, stop_tokens, tokenizer):
    return Request(
        id=100 + number,
        prompt=[1, 2],
        max_output=most,
        sampling=sampling,
        stop_tokens=frozenset(stop_tokens),
        noise=None,
        text=Detokenizer(tokenizer, sampling.stop_texts, stream=sampling.stream),
        slot=slot,
        key=number,
    )


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.5]),
    stream=st.booleans(),
    # One that these letters never spell watches every token and ends nothing.
    stop_texts=st.sampled_from([(), (), (), ("ab",), ("c", "bb"), ("zz",)]),
)
KINDS = st.tuples(
    SAMPLINGS,
    st.integers(1, 16),
    st.sampled_from([(), (), (0,), (3,), (1, 6), (2**40, 5), tuple(range(10, 20))]),
    st.booleans(),
)


def opened(kinds):
    """Return running requests of these kinds in falling slots, and their oracles."""
    running, requests, oracles = Running(LIMITS), [], []
    for number, (sampling, most, stops, fragile) in enumerate(kinds):
        tokenizer = Fragile() if fragile else Letters()
        one = request_of(number, LIMITS.max_requests - 1 - number, sampling, most, stops, tokenizer)
        one.running = running
        running.open(one)
        requests.append(one)
        oracles.append(Sequential(one, fragile))
    return running, requests, oracles


@settings(max_examples=150, deadline=None)
@given(kinds=st.lists(KINDS, min_size=1, max_size=6), seed=st.integers(0, 10_000))
def test_rows_together_get_what_each_gets_token_by_token(kinds, seed):
    """Any mix of lengths, stop tokens, stop texts, streaming, sampling and tokenizers that fail."""
    random = np.random.default_rng(seed)
    running, requests, oracles = opened(kinds)
    streamed = dict.fromkeys((one.id for one in requests), "")
    step = 0
    while alive := [one for one in oracles if one.reason is None]:
        step += 1
        rows = [one.request for one in alive]
        slots = np.array([one.slot for one in rows])
        accepted = random.integers(0, LIMITS.draft_tokens + 1, len(rows))
        # Few different letters: stop texts and tokens do occur. What is behind the accepted ones is nonsense.
        tokens = random.choice(8, p=[0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.05], size=(len(rows), 4))
        tokens = np.where(np.arange(4) <= accepted[:, None], tokens, -1).astype(np.int32)
        gaps = random.random((len(rows), 4)).astype(np.float32)
        before = tokens.copy(), gaps.copy(), accepted.copy()
        emission = emit(running, rows, slots, Decided(accepted, tokens, gaps), None)
        assert all(map(np.array_equal, before, (tokens, gaps, accepted)))
        kept = []
        for row, one in enumerate(alive):
            count = int(accepted[row]) + 1
            kept.append(one.take(tokens[row, :count].tolist(), gaps[row, :count].tolist()))
        assert emission.kept.tolist() == kept
        assert emission.cut == int(accepted.sum()) + len(rows) - sum(kept)
        assert emission.tokens == sum(kept)
        assert emission.ended == [row for row, one in enumerate(alive) if one.reason is not None]
        assert len(emission.events) == len(rows)
        for one, event in zip(alive, emission.events, strict=True):
            assert (event.request, event.finished) == (one.request.id, one.reason)
            assert list(event.tokens) == one.out[len(one.out) - len(event.tokens) :]
            streamed[event.request] += event.text
            assert one.request.sampling.stream or one.reason is not None or not event.text
        for row in emission.ended:
            running.close(rows[row])
            rows[row].leave()
    assert step
    for one in oracles:
        done = one.request.completion(one.reason)
        assert list(done.tokens) == one.out
        np.testing.assert_allclose(done.gaps, one.gaps, rtol=1e-6)
        assert bool(done.error) == (one.reason is FinishReason.FAILED)
        if one.reason is not FinishReason.FAILED:
            assert done.text == streamed[done.request] == one.text


@pytest.mark.parametrize("stops", [(), (2,), tuple(range(20, 40))])
def test_a_stop_text_that_never_comes_changes_no_token(stops):
    """The rows that are looked at one by one and those that are not agree, with few stop tokens and many."""
    outputs = []
    for texts in ((), ("zz",)):
        kinds = [(Sampling(stop_texts=texts, stream=False), most, stops, False) for most in (3, 9, 15)]
        running, requests, _ = opened(kinds)
        random, alive = np.random.default_rng(4), list(requests)
        while alive:
            drawn = random.integers(0, 8, (3, 4)), random.random((3, 4)), random.integers(0, 4, 3)
            rows = [requests.index(one) for one in alive]
            tokens, gaps, accepted = (part[rows] for part in drawn)
            slots = np.array([one.slot for one in alive])
            emit(running, alive, slots, Decided(accepted, tokens, gaps.astype(np.float32)), None)
            for one in alive:
                if one.finished:
                    running.close(one)
                    one.leave()
            alive = [one for one in alive if one.finished is None]
        outputs.append([one.completion(one.finished) for one in requests])
    assert outputs[0] == outputs[1]


def test_a_slots_next_request_begins_with_nothing():
    """Neither tokens, gaps nor stop tokens of the slot's last owner are there any more."""
    running, (old,), _ = opened([(Sampling(temperature=0.5), 9, (0,), False)])
    tokens, gaps = np.array([[4, 4, 4, 0]]), np.ones((1, 4), dtype=np.float32)
    emit(running, [old], np.array([5]), Decided(np.array([3]), tokens, gaps), None)
    assert old.finished is FinishReason.STOP_TOKEN
    generation = running.generations[[5]]
    assert running.holds(np.array([5]), generation).tolist() == [True]
    running.close(old)
    old.leave()
    assert running.holds(np.array([5]), generation).tolist() == [False]
    new = request_of(1, 5, Sampling(), 9, (), Letters())
    new.running = running
    running.open(new)
    assert running.holds(np.array([5]), generation).tolist() == [False]
    assert (new.output, new.output_len, new.computed) == ([], 0, 0)
    emit(running, [new], np.array([5]), Decided(np.array([1]), tokens[:, 2:].repeat(2, 1), gaps), None)
    assert (new.output, running.gaps(5), new.finished) == ([4, 4], [1.0, 1.0], None)
    assert (old.given, old.output_len) == ([4, 4, 4, 0], 4)
