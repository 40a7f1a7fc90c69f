"""Prompts begun behind the replays under way: in order, nothing lost where they fail, no time miscounted."""

from __future__ import annotations

from itertools import pairwise
from time import sleep

import pytest

from adaverify_contracts import EngineError
from adaverify_engine import Sampling
from adaverify_engine.ahead import Ahead
from adaverify_engine.arriving import Arriving
from adaverify_engine.eager import EagerSteps
from adaverify_engine.pipeline import DecodePipeline

TOKENS = 14


def start(engine, prompts, most=TOKENS):
    """Queue ``prompts``; the requests end at different steps, so that prompts come one by one."""
    return [engine.add(prompt, Sampling(max_tokens=most - place % 3)) for place, prompt in enumerate(prompts)]


def require_oracle(tiny, done, ids, prompts, most=TOKENS):
    for place, (request, prompt) in enumerate(zip(ids, prompts, strict=True)):
        expected = tiny.greedy(tiny.Decoder(), prompt, most - place % 3)
        same = [a == b for a, b in zip(done[request].tokens, expected, strict=True)]
        assert all(same) or done[request].gaps[same.index(False)] < 1e-4


def step_through(engine, error):
    """Step until nothing is left; return how many steps raised ``error``."""
    raised = 0
    while not engine.idle:
        try:
            engine.step()
        except error:
            raised += 1
    return raised


def log_of(monkeypatch):
    """Return a list into which launches, begun prompts and reads are written, in order."""
    log = []

    def watch(owner, name, word):
        inner = getattr(owner, name)

        def watched(self, *args, **kwargs):
            log.append(word)
            return inner(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, watched)

    watch(DecodePipeline, "launch", "launch")
    watch(DecodePipeline, "read", "read")
    watch(Ahead, "_read_prompts", "begin")
    watch(Ahead, "_take_prompts", "finish")
    return log


@pytest.mark.parametrize("mode", ["none", "fixed", "adaptive"])
def test_prompts_are_finished_after_the_replays_before_them(make_engine, tiny, monkeypatch, mode):
    log = log_of(monkeypatch)
    engine, prompts = make_engine(mode, replayed=True, max_requests=3), tiny.prompts(9)
    ids = start(engine, prompts)
    require_oracle(tiny, engine.run(), ids, prompts)
    assert log.count("begin") == log.count("finish") > 2
    flying, before, behind, hidden = 0, None, 0, []
    for word in log:
        if word == "begin":
            assert before is None, "prompts are begun once the last ones are finished"
            assert flying > 0, "nothing ran that hides what the host does"
            before, behind = flying, 0
        elif word == "finish":
            assert before == 0
            before = None
            hidden.append(behind)
        else:
            flying += 1 if word == "launch" else -1
            behind += word == "launch"
            if before and word == "read":
                before -= 1
        assert 0 <= flying <= 2
    # None where all who decoded have ended meanwhile.
    assert set(hidden) <= {0, 1} and sum(hidden) > 0, "nothing runs behind prompts that are waited for"


def test_steps_read_late_are_not_timed(make_engine, tiny):
    """What the host did meanwhile would be taken for their price; the others keep theirs."""
    engine, prompts = make_engine("adaptive", replayed=True, max_requests=3), tiny.prompts(9)
    records = []
    engine.verifier.add_observer("test", records.append)
    start(engine, prompts)
    engine.run()
    engine.verifier.drain()
    records.sort(key=lambda record: record.step)
    assert [record.step for record in records] == list(range(len(records))), "a number for each step"
    untimed = [record.step for record in records if record.realised_seconds is None]
    assert untimed and len(untimed) < len(records) / 2
    by_step = {record.step: record for record in records}
    for step in untimed:
        assert by_step[step].requests, "prompts are timed"
        later = [by_step[after].requests for after in range(step + 1, min(step + 3, len(records)))]
        assert 0 in later, "behind an untimed step prompts were begun"


def landings(monkeypatch, engine, pause):
    """Return a list of what came after what: seconds of replays; of prompts with replays behind them, words.

    Handing out tokens of prompts takes ``pause`` seconds more.
    """
    log, hand_out, read = [], EagerSteps.hand_out, DecodePipeline.read

    def slow(self, begun, *args):
        if not begun.work.decode:
            if engine.pipeline.under_way:
                log.append("no tokens" if begun.decided is None else "tokens")
            sleep(pause)
        return hand_out(self, begun, *args)

    def watched(self):
        landed = read(self)
        log.append(landed.seconds)
        return landed

    monkeypatch.setattr(EagerSteps, "hand_out", slow)
    monkeypatch.setattr(DecodePipeline, "read", watched)
    return log


def test_a_replay_behind_prompts_is_timed_from_the_moment_their_tokens_are_there(
    make_engine, tiny, monkeypatch
):
    """The device runs it while the host hands the tokens out: less would be too low a price."""
    engine, prompts = make_engine("adaptive", replayed=True, max_requests=3), tiny.prompts(9)
    log = landings(monkeypatch, engine, 0.03)
    start(engine, prompts)
    engine.run()
    behind = [after for before, after in pairwise(log) if before == "tokens"]
    assert behind
    assert all(seconds >= 0.03 for seconds in behind)


def test_a_replay_behind_prompts_that_go_on_is_not_timed(make_engine, tiny, monkeypatch):
    """Nobody waits for those: when the device came to the replay, the host cannot tell."""
    engine = make_engine("adaptive", replayed=True, max_requests=2, prefill_chunk=4)
    log = landings(monkeypatch, engine, 0.0)
    first = engine.add([1, 2, 3], Sampling(max_tokens=40))
    second = engine.add(list(range(25)), Sampling(max_tokens=4))
    done = engine.run()
    assert list(done[first].tokens) == tiny.greedy(tiny.Decoder(), [1, 2, 3], 40)
    assert list(done[second].tokens) == tiny.greedy(tiny.Decoder(), list(range(25)), 4)
    behind = [after for before, after in pairwise(log) if before == "no tokens"]
    assert any(after is None for after in behind)
    assert not any(isinstance(after, float) for after in behind)


def test_a_replay_behind_prompts_whose_tokens_lay_there_is_not_timed(make_engine, tiny, monkeypatch):
    """The device began it when they came, while the host did something else."""
    monkeypatch.setattr(Arriving, "arrived", property(lambda self: True))
    engine, prompts = make_engine("adaptive", replayed=True, max_requests=3), tiny.prompts(9)
    log = landings(monkeypatch, engine, 0.0)
    ids = start(engine, prompts)
    require_oracle(tiny, engine.run(), ids, prompts)
    behind = [after for before, after in pairwise(log) if before == "tokens"]
    assert any(after is None for after in behind)
    assert not any(isinstance(after, float) for after in behind)


def test_an_interrupt_while_prompts_are_waited_for_loses_nothing(make_engine, tiny, monkeypatch):
    decided, calls = Arriving.decided, []

    def interrupted(self):
        calls.append(self)
        if len(calls) in (2, 3, 5):
            raise KeyboardInterrupt
        return decided(self)

    monkeypatch.setattr(Arriving, "decided", interrupted)
    engine, prompts = make_engine("adaptive", replayed=True, max_requests=3), tiny.prompts(6)
    ids = start(engine, prompts)
    assert step_through(engine, KeyboardInterrupt) == 3
    require_oracle(tiny, engine.take(), ids, prompts)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_prompts_that_could_not_be_begun_are_begun_again(make_engine, tiny, monkeypatch, error):
    """The replays launched in the same step are under way and keep their numbers."""
    begin, calls = EagerSteps.begin, []

    def failing(self, work, clock):
        begun = begin(self, work, clock)
        calls.append(work)
        if len(calls) in (2, 4, 5):
            raise error
        return begun

    monkeypatch.setattr(EagerSteps, "begin", failing)
    engine, prompts = make_engine("adaptive", replayed=True, max_requests=3), tiny.prompts(6)
    ids = start(engine, prompts)
    assert step_through(engine, error) == 3
    require_oracle(tiny, engine.take(), ids, prompts)
    assert "outcome-of-another-step" not in engine.verifier.counters
    assert engine.free_pages == engine.options.pool_pages - 1


def test_prompts_whose_logits_are_not_finite_are_read_again_by_a_mended_model(make_engine, tiny, monkeypatch):
    model = tiny.Decoder()
    engine, prompts = make_engine("fixed", model=model, replayed=True, max_requests=2), tiny.prompts(3)
    begin, logits, broken = EagerSteps.begin, model.logits, []

    def spoiled(self, work, clock):
        if not work.decode and engine.pipeline.under_way and not broken:
            broken.append(work)
            model.logits = lambda hidden: logits(hidden) * float("nan")
        try:
            return begin(self, work, clock)
        finally:
            model.logits = logits

    monkeypatch.setattr(EagerSteps, "begin", spoiled)
    ids = start(engine, prompts)
    with pytest.raises(EngineError, match="not finite"):
        engine.run()
    assert broken
    require_oracle(tiny, engine.run(), ids, prompts)


def test_requests_that_end_with_their_first_token_are_finished_beside_others(make_engine, tiny):
    engine, prompts = make_engine("fixed", replayed=True, max_requests=2), tiny.prompts(6)
    long = engine.add(prompts[0], Sampling(max_tokens=40))
    short = [engine.add(prompt, Sampling(max_tokens=1)) for prompt in prompts[1:]]
    done = engine.run()
    assert len(done[long].tokens) == 40
    for request, prompt in zip(short, prompts[1:], strict=True):
        assert list(done[request].tokens) == tiny.greedy(tiny.Decoder(), prompt, 1)
    assert engine.free_pages == engine.options.pool_pages - 1
