"""Whole decode steps as replays, launched ahead of what the host has read: the tokens do not change."""

from __future__ import annotations

import pytest

from adaverify_contracts import EngineError
from adaverify_engine import Sampling
from adaverify_engine.profiling import grid_for, profile_engine
from adaverify_engine.results import ResultRing

MODES = ("none", "fixed", "adaptive")


def run(engine, prompts, sampling):
    ids = [engine.add(prompt, sampling) for prompt in prompts]
    done = engine.run()
    return [done[request] for request in ids]


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("mode", MODES)
def test_replayed_steps_emit_what_eager_steps_emit(make_engine, tiny, mode, concurrency):
    """One step ahead, with requests that end and begin meanwhile, every token is the oracle's."""
    prompts, model = tiny.prompts(6), tiny.Decoder()
    engine = make_engine(mode, model=model, replayed=True, max_requests=concurrency)
    done = run(engine, prompts, Sampling(max_tokens=30))
    for prompt, completion in zip(prompts, done, strict=True):
        expected = tiny.greedy(model, prompt, 30)
        same = [a == b for a, b in zip(completion.tokens, expected, strict=True)]
        assert all(same) or completion.gaps[same.index(False)] < 1e-4
    counters = engine.verifier.counters
    assert counters["graph replayed"] > 10
    if mode != "none":
        assert engine.stats.accepted > 10
    if mode == "adaptive" and concurrency > 1:
        assert 0 < engine.stats.verified < engine.stats.drafted, "nothing was trimmed"
    assert engine.idle and engine.free_pages == engine.options.pool_pages - 1


def test_host_totals_are_the_device_totals(make_engine, tiny):
    """What a replayed step verified is what was planned, in every step: host totals are right."""
    engine = make_engine("adaptive", replayed=True)
    records = []
    engine.verifier.add_observer("test", records.append)
    run(engine, tiny.prompts(6), Sampling(max_tokens=30))
    engine.verifier.drain()
    assert records
    assert "verified-not-planned" not in engine.verifier.counters
    assert "drafted-not-scheduled" not in engine.verifier.counters


@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_sampled_requests_draw_the_same_tokens_as_eager_ones(make_engine, tiny, top_p):
    """Noise belongs to (request, output position): neither trimming nor replaying changes a draw."""
    prompts, model = tiny.prompts(5), tiny.Decoder()
    sampling = Sampling(temperature=0.9, top_p=top_p, max_tokens=24, seed=3)
    eager = run(make_engine("fixed", model=model), prompts, sampling)
    for mode in MODES:
        replayed = run(make_engine(mode, model=model, replayed=True), prompts, sampling)
        assert [one.tokens for one in replayed] == [one.tokens for one in eager]


def test_stop_tokens_end_a_request_whose_next_step_already_runs(make_engine, tiny):
    """The step launched before the stop was read is thrown away; nothing after the stop is handed out."""
    prompts, model = tiny.prompts(6), tiny.Decoder()
    free = run(make_engine("none", model=model), prompts, Sampling(max_tokens=30))
    stop = free[0].tokens[7]
    sampling = Sampling(max_tokens=30, stop_tokens=(stop,))
    eager = run(make_engine("none", model=model), prompts, sampling)
    engine = make_engine("adaptive", model=model, replayed=True, max_requests=3)
    replayed = run(engine, prompts, sampling)
    assert [one.tokens for one in replayed] == [one.tokens for one in eager]
    assert [one.reason for one in replayed] == [one.reason for one in eager]
    assert engine.stats.discarded > 0


def test_requests_that_a_replay_cannot_serve_run_eagerly_and_are_counted(make_engine, tiny):
    """Log-probabilities need the logits on the host: the step is eager, and the reason is counted."""
    engine = make_engine("fixed", replayed=True)
    (done,) = run(engine, [[1, 2, 3]], Sampling(max_tokens=10, logprobs=True))
    assert len(done.logprobs) == 10
    assert engine.verifier.counters["replay-missed-logprobs"] > 0


def test_an_engine_without_capture_says_so(make_engine):
    """The eager backend captures nothing: capture() returns None and the engine runs as before."""
    assert make_engine("fixed").capture() is None


def test_a_captured_engine_is_profiled_by_its_replays(make_engine):
    """Only captured sizes are measured, and no request or page stays behind."""
    engine = make_engine("fixed", replayed=True, max_requests=2, draft_tokens=2, max_model_len=32)
    table = profile_engine(engine, grid_for(engine.options, repeats=1, ladder=engine.verifier.tiers))
    assert engine.verifier.tiers == (3, 6)
    assert {point[0] for point in table.points} <= {3, 6}
    assert engine.idle
    (done,) = run(engine, [[1, 2, 3]], Sampling(max_tokens=10))
    assert len(done.tokens) == 10


def test_confidences_are_digested_before_a_wait_and_change_no_token(make_engine, tiny, monkeypatch):
    """A host that finds no results digests what has come, and every token is the oracle's as before."""
    monkeypatch.setattr(ResultRing, "arrived", lambda self, index: False)
    prompts, model, work = tiny.prompts(6), tiny.Decoder(), []
    engine = make_engine("adaptive", model=model, replayed=True)
    prepare = engine.verifier.manager.prepare
    monkeypatch.setattr(engine.verifier.manager, "prepare", lambda: work.append(prepare()))
    done = run(engine, prompts, Sampling(max_tokens=30))
    for prompt, completion in zip(prompts, done, strict=True):
        expected = tiny.greedy(model, prompt, 30)
        same = [a == b for a, b in zip(completion.tokens, expected, strict=True)]
        assert all(same) or completion.gaps[same.index(False)] < 1e-4
    assert any(work), "nothing was digested before a plan"


def test_an_interrupt_while_results_are_waited_for_loses_no_token(make_engine, tiny, monkeypatch):
    """The step stays under way until its tokens are handed out: step again, and nothing is missing."""
    engine = make_engine("adaptive", model=tiny.Decoder(), replayed=True)
    take, calls = ResultRing.take, []

    def interrupted(self, index, rows):
        calls.append(index)
        if len(calls) in (3, 4, 9):
            raise KeyboardInterrupt
        return take(self, index, rows)

    monkeypatch.setattr(ResultRing, "take", interrupted)
    prompts = tiny.prompts(4)
    ids = [engine.add(prompt, Sampling(max_tokens=30)) for prompt in prompts]
    interrupts = 0
    while not engine.idle:
        try:
            engine.step()
        except KeyboardInterrupt:
            interrupts += 1
    assert interrupts == 3
    done = engine.take()
    for request, prompt in zip(ids, prompts, strict=True):
        expected = tiny.greedy(tiny.Decoder(), prompt, 30)
        same = [a == b for a, b in zip(done[request].tokens, expected, strict=True)]
        assert all(same) or done[request].gaps[same.index(False)] < 1e-4


def test_an_interrupt_while_a_step_is_launched_is_not_gone_on_from(make_engine, monkeypatch):
    """The device may be a step ahead of what anybody knows of: the engine refuses, and says what to do."""
    engine = make_engine("fixed", replayed=True)
    engine.add([1, 2, 3], Sampling(max_tokens=30))
    launch = engine.verifier.launch

    def interrupted(plan, state):
        launch(plan, state)
        raise KeyboardInterrupt

    while not engine.pipeline.under_way:
        engine.step()
    monkeypatch.setattr(engine.verifier, "launch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    with pytest.raises(EngineError, match="interrupted"):
        engine.step()


def test_logits_that_are_not_finite_are_refused_again_and_again(make_engine, tiny, monkeypatch):
    """No later step is handed out over the broken one."""
    model = tiny.Decoder()
    engine = make_engine("fixed", model=model, replayed=True)
    engine.add([1, 2, 3], Sampling(max_tokens=30))
    while not engine.pipeline.under_way:
        engine.step()
    logits = model.logits
    monkeypatch.setattr(model, "logits", lambda hidden: logits(hidden) * float("nan"))
    with pytest.raises(EngineError, match="not finite"):
        engine.run()
    monkeypatch.setattr(model, "logits", logits)
    with pytest.raises(EngineError, match="not finite"):
        engine.step()


def test_a_device_drafter_that_fails_to_follow_costs_drafts_and_no_request(make_engine, tiny, monkeypatch):
    """The request goes on eagerly, without drafts; its tokens are the oracle's."""
    engine = make_engine("fixed", model=tiny.Decoder(), replayed=True)

    def fails(slot, count):
        raise ValueError("lost count")

    monkeypatch.setattr(engine.drafter, "advanced", fails)
    (done,) = run(engine, [[1, 2, 3]], Sampling(max_tokens=20))
    expected = tiny.greedy(tiny.Decoder(), [1, 2, 3], 20)
    assert list(done.tokens) == expected
    assert engine.verifier.counters["replay-missed-drafter"] > 0
    assert engine.verifier.counters["drafter-raised"] > 0


def test_no_step_is_launched_for_a_request_that_ends_before_it(make_engine, tiny):
    """A step under way emits one token here at least: what can end by then is not run with again."""
    prompts, lengths = tiny.prompts(7), (1, 2, 3, 5, 9, 4, 30)
    engine = make_engine("none", replayed=True, max_requests=2)
    for prompt, length in zip(prompts, lengths, strict=True):
        engine.add(prompt, Sampling(max_tokens=length))
    engine.run()
    assert engine.stats.discarded == 0
    assert engine.stats.decode_requests == sum(lengths) - len(lengths)
    assert engine.verifier.counters["graph replayed"] > 10
