"""Captured steps that draft nothing, among those that do: the tokens do not change, nor do later drafts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from adaverify_contracts import GraphKey
from adaverify_engine import Engine, Sampling
from adaverify_engine.drafters import LookupDrafter
from adaverify_engine.profiling import fingerprint, grid_for, profile_engine
from adaverify_verification import CostTable

FREE = "graph replayed: drafting-free"
MISFITS = (
    "verified-not-planned",
    "drafted-not-scheduled",
    "emitted-not-verified",
    "outcome-of-other-requests",
)


def run(engine, prompts, sampling):
    ids = [engine.add(prompt, sampling) for prompt in prompts]
    done = engine.run()
    return [done[request] for request in ids]


def require_oracle(tiny, model, prompts, done, count):
    for prompt, completion in zip(prompts, done, strict=True):
        expected = tiny.greedy(model, prompt, count)
        same = [a == b for a, b in zip(completion.tokens, expected, strict=True)]
        assert all(same) or completion.gaps[same.index(False)] < 1e-4


@pytest.fixture
def switching(monkeypatch):
    """Return a function that lets an engine's steps draft or not as ``decide(n)`` says of the n-th."""

    def switch(engine, decide):
        asked = []

        def draft_next(requests, kv_tokens):
            asked.append(decide(len(asked)))
            return asked[-1], "as the test says"

        monkeypatch.setattr(engine.verifier.manager, "draft_next", draft_next)
        return asked

    return switch


def priced(tiny, bare):
    """Return the made-up prices with ``bare`` seconds for a step of 4 requests that draft nothing."""
    table = tiny.steep()
    free = [(4, 4, context, bare) for context in (16, 128)]
    return CostTable.from_points(table.fingerprint, table.points, bare=free)


@pytest.mark.parametrize(
    ("kind", "concurrency", "seed"), [("lookup", 1, 0), ("lookup", 4, 1), ("block", 1, 1), ("block", 4, 0)]
)
def test_tokens_do_not_depend_on_which_steps_draft(make_engine, tiny, switching, kind, concurrency, seed):
    """Both kinds in any order, one step ahead, while requests end and begin: every token is the oracle's."""
    prompts, model = tiny.prompts(6 if concurrency > 1 else 3), tiny.Decoder()
    drafter = tiny.Block if kind == "block" else None
    engine = make_engine("adaptive", model=model, drafter=drafter, replayed=True, max_requests=concurrency)
    assert engine.verifier.bare_tiers == (concurrency,)
    random = torch.Generator().manual_seed(seed)
    asked = switching(engine, lambda _: bool(torch.rand(1, generator=random) < 0.5))
    records = []
    engine.verifier.add_observer("test", records.append)
    require_oracle(tiny, model, prompts, run(engine, prompts, Sampling(max_tokens=30)), 30)
    engine.verifier.drain()
    counters = engine.verifier.counters
    assert counters[FREE] == asked.count(False) > 10
    assert counters["graph replayed"] == len(asked)
    assert not set(MISFITS) & set(counters)
    assert {record.scheduled == 0 for record in records if record.requests} == {True, False}
    assert engine.stats.accepted > 10
    assert engine.idle and engine.free_pages == engine.options.pool_pages - 1


def test_sampled_tokens_do_not_depend_on_which_steps_draft(make_engine, tiny, switching):
    prompts, model = tiny.prompts(5), tiny.Decoder()
    sampling = Sampling(temperature=0.9, max_tokens=24, seed=3)
    eager = run(make_engine("fixed", model=model), prompts, sampling)
    engine = make_engine("adaptive", model=model, replayed=True)
    switching(engine, lambda number: number % 3 == 0)
    assert [one.tokens for one in run(engine, prompts, sampling)] == [one.tokens for one in eager]
    assert engine.verifier.counters[FREE] > 10


def test_the_history_that_lookup_drafts_from_is_whole_after_drafting_free_steps(make_engine, tiny, switching):
    """Twelve steps without drafts; then it proposes what a drafter proposes that was told every token."""
    model, prompt = tiny.Decoder(), [1, 2, 3]
    engine = make_engine("adaptive", model=model, replayed=True, max_requests=1)
    switching(engine, lambda number: number >= 12)
    engine.add(prompt, Sampling(max_tokens=40))
    while engine.verifier.counters.get(FREE, 0) < 12:
        engine.step()
    state = engine.drafter.state
    length = int(state.length[0])
    tokens = state.history[0, :length].tolist()
    assert tokens == [*prompt, *tiny.greedy(model, prompt, length - 3)]
    assert not state.trials.any(), "nothing was proposed, so nothing was tried"
    told = LookupDrafter(engine.options.limits, "cpu")
    told.start(0, tokens)
    rows = torch.zeros(1, dtype=torch.int32)
    told.draft(rows)
    engine.drafter.draft(rows)
    assert torch.equal(engine.drafter.state.drafts, told.state.drafts)
    engine.run()
    assert engine.stats.accepted > 5


def test_drafts_of_an_earlier_step_are_not_tried_again(make_engine, switching):
    """The acceptance statistic fades, as in eager steps without drafts, and counts nothing."""
    engine = make_engine("adaptive", replayed=True, max_requests=1)
    asked = switching(engine, lambda number: number < 3)
    engine.add([1, 2, 3], Sampling(max_tokens=60))
    while len(asked) < 5:
        engine.step()
    state = engine.drafter.state
    steps, before = len(asked), (float(state.hits[0]), float(state.trials[0]))
    assert before[1] > 0
    for _ in range(4):
        engine.step()
    faded = 0.85 ** (len(asked) - steps)
    assert faded < 1
    assert (float(state.hits[0]), float(state.trials[0])) == pytest.approx([faded * one for one in before])
    engine.run()


def test_steps_stop_drafting_where_the_table_says_that_it_loses(make_engine, tiny):
    """By the manager's own comparison of prices; a few steps draft before it is made."""
    prompts, model = tiny.prompts(6), tiny.Decoder()
    engine = make_engine("adaptive", model=model, replayed=True, table=priced(tiny, 1e-6))
    require_oracle(tiny, model, prompts, run(engine, prompts, Sampling(max_tokens=30)), 30)
    counters = engine.verifier.counters
    assert counters[FREE] > counters["graph replayed"] - 10 > 0
    assert 0 < engine.stats.drafted < 8 * 4 * 5, "the first steps, and those beside prompts"


@pytest.mark.parametrize("bare", [None, 1.0])
def test_steps_draft_where_that_pays_or_nothing_is_known(make_engine, tiny, bare):
    table = tiny.steep() if bare is None else priced(tiny, bare)
    engine = make_engine("adaptive", replayed=True, table=table)
    run(engine, tiny.prompts(4), Sampling(max_tokens=20))
    assert FREE not in engine.verifier.counters
    assert engine.verifier.counters["graph replayed"] > 5


@pytest.mark.parametrize("mode", ["none", "fixed"])
def test_other_modes_capture_one_kind(make_engine, mode):
    assert make_engine(mode, replayed=True).verifier.bare_tiers == ()


def test_a_drafting_free_step_publishes_no_confidences(make_engine, tiny, switching):
    """What a later budget reads are those of the last drafts, and no request is scored for none."""
    engine = make_engine("adaptive", replayed=True)
    begun, inner = [], engine.verifier.manager.begin_publish

    def begin(step, slots, generations):
        begun.append(step)
        return inner(step, slots, generations)

    engine.verifier.manager.begin_publish = begin
    asked = switching(engine, lambda number: number % 4 == 0)
    run(engine, tiny.prompts(4), Sampling(max_tokens=20))
    assert len(begun) == asked.count(True)


def test_a_drafting_free_size_that_failed_to_capture_leaves_steps_that_draft(make_engine, tiny, monkeypatch):
    """Nobody is asked whether to draft then: every step has a graph as before."""

    class Tight(tiny.Decoder):
        def forward_tapped(self, tokens, positions, attend, taps):
            if len(tokens) == 4 and not self.serving:
                raise MemoryError("injected")
            return super().forward_tapped(tokens, positions, attend, taps)

    model, prompts = Tight(), tiny.prompts(4)
    model.serving = False
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "capture", lambda engine: SimpleNamespace(captured=True, failed=()))
        engine = make_engine("adaptive", model=model, replayed=True, table=priced(tiny, 1e-6))
    report = engine.capture()
    model.serving = True
    assert [failure.key for failure in report.failed] == [
        GraphKey(4, 4, 1, engine.options.limits.table_width)
    ]
    require_oracle(tiny, tiny.Decoder(), prompts, run(engine, prompts, Sampling(max_tokens=20)), 20)
    assert FREE not in engine.verifier.counters
    assert engine.verifier.counters["graph replayed"] > 5


def test_both_kinds_are_profiled_and_the_table_belongs_to_both_ladders(make_engine, tiny):
    """Every captured size that drafts nothing has a time at every context; requests run as before."""
    engine = make_engine("adaptive", replayed=True, max_requests=2, draft_tokens=2, max_model_len=32)
    verifier, options = engine.verifier, engine.options
    grid = grid_for(options, repeats=1, ladder=verifier.tiers, bare=verifier.bare_tiers)
    before = dict(verifier.counters)
    table = profile_engine(engine, grid)
    assert verifier.counters[FREE] > before.get(FREE, 0)
    assert [point[:3] for point in table.bare] == [(2, 2, context) for context in grid.contexts]
    assert all(seconds > 0 for *_, seconds in table.bare)
    geometry = engine.model.model.geometry
    name = next(one.name for one in verifier.report.drafters if one.chosen)
    parts = (geometry, options, verifier.capability, verifier.tiers, name)
    assert not table.fingerprint.differences(fingerprint(*parts, verifier.bare_tiers))
    assert set(table.fingerprint.differences(fingerprint(*parts))) == {"bare"}
    assert engine.idle
    (done,) = run(engine, [[1, 2, 3]], Sampling(max_tokens=10))
    assert list(done.tokens) == tiny.greedy(tiny.Decoder(), [1, 2, 3], 10)
