"""A drafter, model or tokenizer that fails, and a step that is interrupted: other requests lose nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adaverify_contracts import DraftBatch, EngineError
from adaverify_engine import FinishReason, Sampling
from adaverify_engine.draft_source import FAILURES
from adaverify_engine.drafters import NgramDrafter


class Failing(NgramDrafter):
    """The n-gram drafter, with calls that fail at chosen times (counted from 0, all methods apart)."""

    def __init__(self, options, when, error=RuntimeError):
        super().__init__(options.limits, torch.device("cpu"))
        self.when, self.error, self.calls = when, error, dict.fromkeys(when, 0)

    def _count(self, name):
        if name in self.when:
            self.calls[name] += 1
            if self.calls[name] - 1 in self.when[name]:
                raise self.error(f"{name} failed")

    def start(self, slot, prompt):
        self._count("start")
        super().start(slot, prompt)

    def propose(self, slots, room):
        self._count("propose")
        return super().propose(slots, room)

    def extend(self, slot, tokens):
        self._count("extend")
        super().extend(slot, tokens)

    def stop(self, slot):
        self._count("stop")
        super().stop(slot)


def run_and_compare(engine, tiny, prompts, count=30):
    """Run to the end, stepping again after anything raised; every request must match the oracle."""
    ids = [engine.add(prompt, Sampling(max_tokens=count)) for prompt in prompts]
    raised = []
    while not engine.idle:
        try:
            engine.step()
        except (RuntimeError, KeyboardInterrupt) as error:
            raised.append(type(error))
            assert len(raised) < 20
    done = engine.take()
    for request, prompt in zip(ids, prompts, strict=True):
        assert list(done[request].tokens) == tiny.greedy(tiny.Decoder(), prompt, count)
    return raised


@pytest.mark.parametrize("mode", ["fixed", "adaptive"])
@pytest.mark.parametrize("method", ["start", "propose", "extend", "stop"])
def test_a_drafter_that_raises_once_costs_drafts_and_nothing_else(make_engine, tiny, mode, method):
    """Counted by name and in the record; the drafter is asked again, for every request it still knows."""
    records = []
    engine = make_engine(mode, drafter=Failing(tiny.options(), {method: {2}}))
    engine.verifier.add_observer("test", records.append)
    assert run_and_compare(engine, tiny, tiny.prompts(6)) == []
    assert engine.verifier.counters["drafter-raised"] == 1
    assert "drafter-disabled" not in engine.verifier.counters
    engine.verifier.drain()
    assert sum("drafter-raised" in record.fallbacks for record in records) == 1
    assert engine.stats.accepted > 20


def test_a_drafter_that_keeps_raising_is_disabled(make_engine, tiny, caplog):
    """After three failures it is not asked again; every later step says so and decodes plainly."""
    drafter = Failing(tiny.options(), {"propose": set(range(1000))})
    engine = make_engine("fixed", drafter=drafter)
    run_and_compare(engine, tiny, tiny.prompts(6))
    assert drafter.calls["propose"] == FAILURES == 3
    counters = engine.verifier.counters
    assert counters["drafter-raised"] == 3
    assert counters["drafter-disabled"] > 20
    assert engine.stats.drafted == 0
    assert "disabled" in caplog.records[-1].message
    assert len(caplog.records) == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda batch, room: (batch.tokens, room * 0 + 6, batch.scores),
        lambda batch, room: (batch.tokens, room * 0 - 1, batch.scores),
        lambda batch, room: (batch.tokens[:, :2], batch.scheduled, batch.scores[:, :2]),
        lambda batch, room: (
            batch.tokens[:0],
            batch.scheduled[:0],
            batch.scores[:0],
        ),
        lambda batch, room: (batch.tokens, batch.scheduled.astype(float), batch.scores),
        lambda batch, room: (batch.tokens, batch.scheduled.tolist(), batch.scores),
        lambda batch, room: (batch.tokens, batch.scheduled, batch.scores.double()),
        lambda batch, room: (batch.tokens.float(), batch.scheduled, batch.scores),
        lambda batch, room: (batch.tokens >= 0, batch.scheduled, batch.scores),
        lambda batch, room: (batch.tokens, batch.scheduled, batch.scores, torch.ones(len(room), 5, 3)),
        lambda batch, room: (
            batch.tokens,
            batch.scheduled,
            batch.scores,
            torch.ones(len(room), 5, 50, dtype=torch.float64),
        ),
    ],
)
def test_drafts_that_no_step_can_verify_are_not_taken(make_engine, tiny, change):
    """Over the room, below nothing (vllm #48494), another width, number of requests, or type."""

    class Odd(NgramDrafter):
        def propose(self, slots, room):
            return DraftBatch(*change(super().propose(slots, room), room))

    engine = make_engine("fixed", drafter=Odd(tiny.options().limits, torch.device("cpu")))
    run_and_compare(engine, tiny, tiny.prompts(4))
    assert engine.verifier.counters["drafter-nonsense"] == 3
    assert engine.stats.drafted == 0


@pytest.mark.parametrize("token", [-1, -7, 50, 2**40])
@pytest.mark.parametrize("law", [False, True])
def test_draft_ids_outside_the_vocabulary_are_never_an_index(make_engine, tiny, token, law, caplog):
    """vllm #50939: a placeholder used as an index. Scheduled like real drafts, equal to no token, counted."""

    class Outside(NgramDrafter):
        def propose(self, slots, room):
            shape = (len(slots), 5)
            uniform = torch.full((*shape, tiny.vocabulary), 1 / tiny.vocabulary) if law else None
            return DraftBatch(torch.full(shape, token), room.copy(), torch.zeros(shape), uniform)

    engine = make_engine("fixed", drafter=Outside(tiny.options().limits, torch.device("cpu")))
    prompt = [2, 9, 4]
    greedy = engine.add(prompt, Sampling(max_tokens=12))
    if law:
        engine.add(prompt, Sampling(max_tokens=12, temperature=1.0))
    assert list(engine.run()[greedy].tokens) == tiny.greedy(tiny.Decoder(), prompt, 12)
    assert engine.stats.accepted == 0
    assert engine.stats.verified > 0
    # The last token of a request has no room for drafts: nothing is scheduled there, and nothing is odd.
    assert engine.verifier.counters["drafter-nonsense"] == 10
    assert [f"such as {token}" in record.message for record in caplog.records] == [True]


def test_scores_that_are_no_numbers_change_no_token(make_engine, tiny):
    """NaN and infinities from a drafter, end to end: named in every record, no wrong token (vllm #54011)."""

    class Odd(NgramDrafter):
        def propose(self, slots, room):
            batch = super().propose(slots, room)
            batch.scores[:, 0::2] = float("nan")
            batch.scores[:, 1::2] = float("inf")
            return batch

    engine = make_engine("adaptive", drafter=Odd(tiny.options().limits, torch.device("cpu")))
    run_and_compare(engine, tiny, tiny.prompts(6))
    assert engine.verifier.counters["invalid-scores"] > 10


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("mode", ["none", "fixed", "adaptive"])
def test_a_model_that_raises_changes_no_request(make_engine, tiny, error, mode):
    """In a prefill, a mixed and a decode step; stepping again continues as if nothing had happened."""

    class Broken(tiny.Decoder):
        passes = 0

        def forward(self, tokens, positions, attend):
            Broken.passes += 1
            hidden = super().forward(tokens, positions, attend)
            if Broken.passes in (1, 2, 5, 9, 10):
                raise error("the pass was lost after it had written its KV")
            return hidden

    engine = make_engine(mode, model=Broken())
    raised = run_and_compare(engine, tiny, tiny.prompts(7))
    assert raised == [error] * 5


@pytest.mark.parametrize("method", ["start", "propose", "extend", "stop"])
def test_an_interrupt_inside_the_drafter_passes(make_engine, tiny, method):
    """Before tokens are handed out the step can be repeated; while they are, the engine refuses to go on."""
    drafter = Failing(tiny.options(), {method: {1}}, KeyboardInterrupt)
    engine = make_engine("fixed", drafter=drafter)
    if method in ("start", "propose"):
        assert run_and_compare(engine, tiny, tiny.prompts(6)) == [KeyboardInterrupt]
        return
    ids = [engine.add(prompt, Sampling(max_tokens=9)) for prompt in tiny.prompts(6)]
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    for _ in range(2):
        with pytest.raises(EngineError, match="interrupted while tokens were handed out"):
            engine.step()
    for done in engine.take().values():
        prompt = tiny.prompts(6)[ids.index(done.request)]
        assert list(done.tokens) == tiny.greedy(tiny.Decoder(), prompt, 9)


@pytest.mark.parametrize("mode", ["none", "fixed", "adaptive"])
def test_an_interrupt_while_learning_loses_no_token(make_engine, tiny, monkeypatch, mode):
    """After the tokens are handed out: completions are whole, and the next step has the next number."""
    engine = make_engine(mode)
    observe, calls = engine.verifier.observe, []

    def interrupted(outcome, plan):
        calls.append(plan.step)
        if len(calls) in (2, 6):
            raise KeyboardInterrupt
        return observe(outcome, plan)

    monkeypatch.setattr(engine.verifier, "observe", interrupted)
    assert run_and_compare(engine, tiny, tiny.prompts(6)) == [KeyboardInterrupt] * 2
    assert calls[:4] == [0, 1, 2, 3]
    assert "outcome-of-another-step" not in engine.verifier.counters


def test_an_interrupted_step_gives_no_second_answer(make_engine, tiny):
    """Sampled text after an interrupt is what it would have been: noise belongs to the output position."""
    texts = []
    for failing in ((), (3, 4)):

        class Broken(tiny.Decoder):
            passes = 0

            def forward(self, tokens, positions, attend, failing=failing):
                self.passes += 1
                if self.passes in failing:
                    raise KeyboardInterrupt
                return super().forward(tokens, positions, attend)

        engine = make_engine("adaptive", model=Broken())
        ids = [engine.add(p, Sampling(temperature=0.7, seed=3, max_tokens=20)) for p in tiny.prompts(4)]
        while not engine.idle:
            try:
                engine.step()
            except KeyboardInterrupt:
                continue
        done = engine.take()
        texts.append([done[request].tokens for request in ids])
    assert texts[0] == texts[1]


def test_a_tokenizer_that_raises_ends_its_request_only(make_engine, tiny):
    """It ends as failed, with the tokens it had and the error; batch mates are exact, nothing leaks."""

    class Poisoned(tiny.Tokenizer):
        def decode(self, tokens):
            if 13 in tokens:
                raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text")
            return super().decode(tokens)

    prompts = tiny.prompts(8)
    expected = [tiny.greedy(tiny.Decoder(), prompt, 30) for prompt in prompts]
    hit = [13 in tokens for tokens in expected]
    assert any(hit) and not all(hit), "some must fail and some must not, or nothing is tested"
    for mode in ("none", "fixed", "adaptive"):
        engine = make_engine(mode, tokenizer=Poisoned())
        pages = engine.free_pages
        ids = [engine.add(prompt, Sampling(max_tokens=30)) for prompt in prompts]
        done = engine.run()
        for request, tokens, fails in zip(ids, expected, hit, strict=True):
            end = tokens.index(13) + 1 if fails else 30
            assert list(done[request].tokens) == tokens[:end]
            assert done[request].reason is (FinishReason.FAILED if fails else FinishReason.LENGTH)
            assert done[request].error.startswith("UnicodeDecodeError") is fails
        assert engine.free_pages == pages
        assert engine.verifier.counters["request-failed"] == sum(hit)


def test_an_observer_that_raises_costs_nobody_a_token(make_engine, tiny):
    """Disabled after its first record, counted, and never in the way of the engine."""
    engine = make_engine("adaptive")
    engine.verifier.add_observer("broken", lambda record: 1 / 0)
    run_and_compare(engine, tiny, tiny.prompts(4))
    engine.verifier.drain()
    assert engine.verifier.counters["observer-disabled:broken"] == 1


def test_a_request_recycled_between_publish_and_plan_is_a_stranger(make_engine, tiny):
    """The slot's generation moved on after its scores were published: survival 1, everything verified."""
    engine = make_engine("adaptive", max_requests=1, settings=None)
    manager = engine.verifier.manager
    slots, scores = np.array([0]), torch.full((1, 5), -8.0)
    state = {"slots": slots, "scheduled": np.array([5]), "emitting": 1}
    from adaverify_contracts import StepState

    for step in range(4):
        engine.verifier.publish(step, slots, np.array([4]), scores)
        same = engine.verifier.plan(StepState(step=step, generations=np.array([4]), **state))
        if step > 2:
            assert same.predicted_tokens < 6.0
    engine.verifier.publish(9, slots, np.array([4]), scores)
    stranger = engine.verifier.plan(StepState(step=9, generations=np.array([5]), **state))
    assert stranger.budget == 5
    assert stranger.full_tokens == 6.0
    assert "signal-raised" not in manager.counters


@pytest.mark.parametrize("law", [False, True])
def test_a_request_that_the_drafter_lost_goes_on_without_drafts(make_engine, law):
    """Its batch mates keep theirs, row by row; the slot's next request is drafted for again."""
    from adaverify_engine.draft_source import DraftSource

    class Rows(NgramDrafter):
        def start(self, slot, prompt):
            if prompt == [0]:
                raise ValueError("no such prompt")

        def propose(self, slots, room):
            tokens = torch.tensor(slots)[:, None].expand(-1, 5).clone()
            probabilities = tokens[..., None] * torch.ones(1, 1, 50) if law else None
            return DraftBatch(tokens, room + 0, tokens.float(), probabilities)

    options = make_engine().options
    source = DraftSource(Rows(options.limits, torch.device("cpu")), options, 50)
    for slot, prompt in ((1, [5]), (2, [0]), (3, [5])):
        source.start_rows(np.array([slot]), [prompt])
    room = np.array([5, 4, 3])
    batch = source.propose([1, 2, 3], room)
    assert batch.scheduled.tolist() == [5, 0, 3]
    assert batch.tokens[:, 0].tolist() == [1, -1, 3]
    assert batch.scores[:, 4].tolist() == [1.0, 0.0, 3.0]
    if law:
        assert batch.probabilities[:, 0, 0].tolist() == [1.0, 0.0, 3.0]
    source.stop_rows(np.array([2]))
    source.start_rows(np.array([2]), [[5]])
    assert source.propose([1, 2, 3], room).scheduled.tolist() == [5, 4, 3]
    assert source.take_faults() == ["drafter-raised"]
