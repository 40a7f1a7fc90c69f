"""Penalties act on the logits that decide, and count what stands before each position (maths section 5.6)."""

from __future__ import annotations

import pytest
import torch

from adaverify_contracts import DraftBatch, EngineError
from adaverify_engine import Sampling

MODES = ("none", "fixed", "adaptive")
KINDS = (
    {"repetition_penalty": 1.3},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.7},
    {"repetition_penalty": 0.8, "presence_penalty": 0.5, "frequency_penalty": 0.4},
)


def penalised_by_hand(row, prompt, output, sampling):
    """Return one row of logits under the penalties, token by token in plain Python."""
    row = row.clone()
    for token in range(len(row)):
        times = output.count(token)
        if token in prompt or times:
            factor = sampling.repetition_penalty
            row[token] = row[token] / factor if row[token] > 0 else row[token] * factor
        row[token] -= sampling.frequency_penalty * times + sampling.presence_penalty * (times > 0)
    return row


def oracle(tiny, model, prompt, sampling):
    """Return greedy tokens and gaps, the whole sequence computed anew for each."""
    output, gaps = [], []
    for _ in range(sampling.max_tokens):
        row = penalised_by_hand(tiny.logits(model, prompt + output)[-1], prompt, output, sampling)
        best = row.topk(2).values
        gaps.append(float(best[0] - best[1]))
        output.append(int(row.argmax()))
    return output, gaps


@pytest.mark.parametrize("kind", KINDS)
def test_all_modes_emit_what_a_plain_loop_emits(make_engine, tiny, kind):
    """Accepted, refused and trimmed drafts alike: tokens and gaps are those of one token at a time."""
    model, sampling = tiny.Decoder(), Sampling(max_tokens=24, **kind)
    prompts = tiny.prompts(4, seed=8)
    expected = [oracle(tiny, model, prompt, sampling) for prompt in prompts]
    assert [tokens for tokens, _ in expected] != [tiny.greedy(model, p, 24) for p in prompts]
    accepted = 0
    for mode in MODES:
        engine = make_engine(mode, model=model)
        ids = [engine.add(prompt, sampling) for prompt in prompts]
        done = engine.run()
        for request, (tokens, gaps) in zip(ids, expected, strict=True):
            assert list(done[request].tokens) == tokens
            torch.testing.assert_close(
                torch.tensor(done[request].gaps), torch.tensor(gaps), atol=1e-4, rtol=0
            )
        accepted += engine.stats.accepted
    assert accepted or "frequency_penalty" in kind, "no row behind a draft decided anything"


class Foretelling:
    """Knows what a request will emit, and drafts it, right up to a place and wrong from there on."""

    def __init__(self, width, text, right):
        self.width, self.text, self.right, self.at = width, text, right, 0

    def start(self, slot, prompt):
        self.at = len(prompt)

    def propose(self, slots, room):
        tokens = torch.full((1, self.width), -1)
        count = int(room[0])
        tokens[0, :count] = torch.tensor(self.text[self.at : self.at + count])
        # Wrong, and exactly what comes next: a trace of it would be punished when it is due.
        for k in range(self.right, count):
            tokens[0, k] = self.text[self.at + k + 1]
        return DraftBatch(tokens, room.copy(), torch.zeros(tokens.shape))

    def extend(self, slot, tokens):
        self.at += len(tokens)

    def stop(self, slot):
        pass


@pytest.mark.parametrize("right", [0, 2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_each_row_counts_the_drafts_before_it_and_no_other(make_engine, tiny, kind, right):
    """Row k is judged as if the drafts before k were emitted; refused ones are never held against anybody."""
    model, sampling = tiny.Decoder(), Sampling(max_tokens=16, **kind)
    prompt = [1, 2, 3, 4]
    expected, _ = oracle(tiny, model, prompt, Sampling(max_tokens=24, **kind))
    engine = make_engine(
        "fixed", model=model, max_requests=1, drafter=Foretelling(5, prompt + expected, right)
    )
    request = engine.add(prompt, sampling)
    assert list(engine.run()[request].tokens) == expected[:16]
    assert engine.stats.accepted >= {0: 0, 2: 8, 5: 11}[right]
    assert not {"drafter-raised", "drafter-nonsense"} & set(engine.verifier.counters)


def test_sampled_text_with_penalties_is_the_same_in_every_mode(make_engine, tiny):
    """The noise belongs to the position and the penalties to what stands before it."""
    prompts = tiny.prompts(4, seed=3)
    texts = []
    for mode in MODES:
        engine = make_engine(mode)
        sampling = Sampling(
            temperature=0.8, seed=5, max_tokens=20, repetition_penalty=1.2, frequency_penalty=0.3
        )
        ids = [engine.add(prompt, sampling) for prompt in prompts]
        done = engine.run()
        texts.append([done[request].tokens for request in ids])
    assert texts[0] == texts[1] == texts[2]


def test_requests_with_penalties_run_eagerly_and_are_counted(make_engine, tiny):
    """Captured steps have no penalties: such a step is no replay, and batch mates do not change."""
    model, sampling = tiny.Decoder(), Sampling(max_tokens=16, repetition_penalty=1.3)
    expected, _ = oracle(tiny, model, [5, 6, 7], sampling)
    engine = make_engine("adaptive", model=model, replayed=True)
    long = engine.add([1, 2, 3], Sampling(max_tokens=40))
    request = engine.add([5, 6, 7], sampling)
    done = engine.run()
    assert list(done[request].tokens) == expected
    assert list(done[long].tokens) == tiny.greedy(model, [1, 2, 3], 40)
    counters = engine.verifier.counters
    assert counters["replay-missed-penalties"] > 5
    assert counters["graph replayed"] > 0


def test_penalised_requests_teach_no_calibration(make_engine):
    """Their target is one that the drafter cannot know (maths section 6)."""
    engine = make_engine("fixed")
    seen = []
    learn = engine.verifier.manager.signal.learn
    engine.verifier.manager.signal.learn = lambda outcome: (seen.append(outcome.learn.copy()), learn(outcome))
    engine.add([1, 2, 3], Sampling(max_tokens=8))
    engine.add([4, 5, 6], Sampling(max_tokens=8, presence_penalty=0.1))
    engine.run()
    assert any(row.tolist() == [True, False] for row in seen)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("presence_penalty", float("nan")),
        ("frequency_penalty", "1"),
    ],
)
def test_penalties_out_of_range_are_refused(name, value):
    """The message names the field and what it may be."""
    with pytest.raises(EngineError, match=name):
        Sampling(**{name: value})
