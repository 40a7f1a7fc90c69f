"""Captured engines decode or read prompts, in turns: no step does both, and nobody waits for ever."""

from __future__ import annotations

import pytest

from adaverify_engine import Sampling
from adaverify_engine.pipeline import DecodePipeline
from adaverify_engine.turns import MOST_STEPS, Turns


def test_prompts_take_at_most_their_share_while_few_wait():
    """A prompt step of 3 ms waits for 9 ms of decoding, unless an eighth of the slots waits."""
    turns = Turns()
    assert turns.prompts_next(63, 1), "nothing was read before"
    turns.ran(0.003, prompts=True)
    assert not turns.prompts_next(1, 100), "a decode step comes first, whoever waits"
    turns.ran(0.004, prompts=False)
    assert not turns.prompts_next(63, 1)
    assert not turns.prompts_next(57, 8)
    assert turns.prompts_next(56, 8)
    turns.ran(0.005, prompts=False)
    assert turns.prompts_next(63, 1)


def test_a_prompt_step_that_took_seconds_holds_up_nobody_for_long():
    """Compiling, or a machine that slept: the next prompt waits for 32 decode steps, not for nine seconds."""
    turns = Turns()
    turns.ran(3.0, prompts=True)
    for _ in range(MOST_STEPS):
        assert not turns.prompts_next(63, 1)
        turns.ran(0.003, prompts=False)
    assert turns.prompts_next(63, 1)
    turns.ran(0.003, prompts=True)
    turns.ran(0.003, prompts=False)
    assert not turns.prompts_next(63, 1), "the count begins anew"


def test_a_decode_step_that_nobody_timed_is_one_all_the_same():
    """A long prompt, whose parts nobody waits for, leaves such steps behind; one is enough between."""
    turns = Turns()
    turns.ran(0.003, prompts=True)
    assert not turns.prompts_next(1, 100)
    turns.ran(0.0, prompts=False)
    assert turns.prompts_next(1, 100)
    assert not turns.prompts_next(63, 1), "its time counts as none"


def records_of(engine, prompts, sampling):
    records = []
    engine.verifier.add_observer("test", records.append)
    ids = [engine.add(prompt, sampling) for prompt in prompts]
    done = engine.run()
    engine.verifier.drain()
    return records, [done[one] for one in ids]


@pytest.mark.parametrize("mode", ["none", "fixed", "adaptive"])
def test_no_captured_step_reads_prompts_beside_it(make_engine, tiny, mode):
    """Requests end and begin all the time, yet every decode step is a replay; tokens are the oracle's."""
    prompts, model = tiny.prompts(9), tiny.Decoder()
    engine = make_engine(mode, model=model, replayed=True, max_requests=3)
    records, done = records_of(engine, prompts, Sampling(max_tokens=20))
    decoding = [record for record in records if record.requests]
    assert len(decoding) == engine.verifier.counters["graph replayed"]
    assert len(records) > len(decoding), "prompts were read"
    for prompt, completion in zip(prompts, done, strict=True):
        same = [a == b for a, b in zip(completion.tokens, tiny.greedy(model, prompt, 20), strict=True)]
        assert all(same) or completion.gaps[same.index(False)] < 1e-4


def test_a_long_prompt_does_not_stop_those_who_decode(make_engine, tiny):
    """Two tokens of a prompt a step: the other request gets tokens between them."""
    engine = make_engine("fixed", replayed=True, max_requests=2, prefill_chunk=2)
    first = engine.add([1, 2], Sampling(max_tokens=30))
    while not engine.step():
        pass
    engine.add(list(range(1, 21)), Sampling(max_tokens=2))
    order = []
    while not engine.idle:
        order += [event.request == first for event in engine.step()]
    assert order.index(False) > 10, "the long prompt was read in one piece"
    assert any(order[: order.index(False)])


def test_prompts_are_read_though_no_captured_size_serves_a_batch(make_engine, tiny, monkeypatch):
    """Decode steps run eagerly then, and count as such between two steps for prompts."""
    monkeypatch.setattr(DecodePipeline, "launch", lambda *_: False)
    prompts, model = tiny.prompts(6), tiny.Decoder()
    engine = make_engine("fixed", model=model, replayed=True, max_requests=3)
    _, done = records_of(engine, prompts, Sampling(max_tokens=12))
    assert all(len(one.tokens) == 12 for one in done)
    assert engine.verifier.counters.get("graph replayed", 0) == 0
