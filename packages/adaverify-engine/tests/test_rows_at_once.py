"""What is told of all requests of a step at once is what would be told of one after the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import Limits
from adaverify_engine import EngineOptions, Sampling
from adaverify_engine.draft_source import FAILURES, DraftSource
from adaverify_engine.drafters import LookupDrafter
from adaverify_engine.slots import SlotInputs

LIMITS = Limits(max_requests=5, draft_tokens=3, max_model_len=40, page_size=4)
OPTIONS = EngineOptions(max_requests=5, draft_tokens=3, max_model_len=40, page_size=4)
CPU = torch.device("cpu")


def same_state(one, other):
    """Return whether two drafters hold the same, as far as anybody reads."""
    lengths = one.state.length.tolist()
    assert lengths == other.state.length.tolist() == one._lengths.tolist() == other._lengths.tolist()
    for slot, length in enumerate(lengths):
        assert one.state.history[slot, :length].tolist() == other.state.history[slot, :length].tolist()
    for name in ("hits", "trials"):
        assert torch.equal(getattr(one.state, name), getattr(other.state, name))


ROWS = st.lists(st.integers(0, 4), min_size=1, max_size=5, unique=True)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(ROWS, min_size=1, max_size=4), seed=st.integers(0, 1000))
def test_a_drafters_rows_are_its_requests(rows, seed):
    """Begun, extended and advanced together or one by one: history, lengths and counts are the same."""
    random, together, apart = (
        np.random.default_rng(seed),
        LookupDrafter(LIMITS, CPU),
        LookupDrafter(LIMITS, CPU),
    )
    for drafter in (together, apart):
        drafter.state.hits.fill_(3.0)
        drafter.state.trials.fill_(5.0)
    prompts = [random.integers(0, 50, random.integers(1, 9)).tolist() for _ in rows[0]]
    together.start_rows(np.array(rows[0]), prompts)
    for slot, prompt in zip(rows[0], prompts, strict=True):
        apart.start(slot, prompt)
    same_state(together, apart)
    for slots in rows[1:]:
        tokens, counts = random.integers(0, 50, (len(slots), 4)), random.integers(0, 5, len(slots))
        together.extend_rows(np.array(slots), tokens, counts)
        for slot, row, count in zip(slots, tokens.tolist(), counts.tolist(), strict=True):
            apart.extend(slot, row[:count])
        same_state(together, apart)
    together.advanced_rows(np.array(rows[0]), np.arange(len(rows[0])))
    for count, slot in enumerate(rows[0]):
        apart.advanced(slot, count)
    assert together._lengths.tolist() == apart._lengths.tolist()
    together.stop_rows(np.array(rows[0]))
    for slot in rows[0]:
        apart.stop(slot)
    same_state(together, apart)
    assert not together.state.length[rows[0]].any()


def test_a_drafter_that_overrides_a_call_is_told_of_each_request():
    """Whoever derives from a drafter of ours and overrides a call still gets it, and fails by request."""
    told = []

    class Own(LookupDrafter):
        def advanced(self, slot, count):
            told.append((slot, count))
            if slot == 3:
                raise RuntimeError("not this one")
            super().advanced(slot, count)

        def extend(self, slot, tokens):
            told.append((slot, list(tokens)))
            super().extend(slot, tokens)

    source = DraftSource(Own(LIMITS, CPU), OPTIONS, 50)
    source.start_rows(np.array([1, 3]), [[5, 6], [7]])
    source.extend_rows(np.array([1, 3]), np.array([[8, 9], [4, 0]]), np.array([2, 1]))
    source.advanced_rows(np.array([1, 3]), np.array([2, 1]))
    assert told == [(1, [5, 6]), (3, [7]), (1, [8, 9]), (3, [4]), (1, 2), (3, 1)]
    assert source.take_faults() == ["drafter-raised"]
    assert source.serves(np.array([1, 2])) and not source.serves(np.array([1, 3]))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_rows_whose_telling_failed_are_lost_and_no_others(error):
    """One failure for all rows of a call; the other requests keep their drafts, and an interrupt passes."""

    class Failing(LookupDrafter):
        fails = False

        def extend_rows(self, slots, tokens, counts):
            if self.fails:
                raise error("no")
            super().extend_rows(slots, tokens, counts)

    source = DraftSource(Failing(LIMITS, CPU), OPTIONS, 50)
    source.start_rows(np.array([0, 1, 2]), [[5], [6], [7]])
    source.drafter.fails, news = True, (np.array([[1], [2]]), np.array([1, 1]))
    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            source.extend_rows(np.array([0, 2]), *news)
    else:
        source.extend_rows(np.array([0, 2]), *news)
        assert 0 < source.failures < FAILURES
    source.drafter.fails = False
    assert source.serves(np.array([1])) and not source.serves(np.array([0]))
    # A row that is lost is left out, the one beside it is told.
    source.extend_rows(np.array([0, 1]), *news)
    assert source.drafter.state.length.tolist()[:3] == [1, 2, 1]
    source.start_rows(np.array([0]), [[3, 3]])
    assert source.serves(np.array([0, 1]))


def test_slot_inputs_of_many_requests(make_engine, tiny):
    """Limits, laws, pages and noise of requests that begin together, each in its own slot."""
    engine, slots = make_engine("fixed", max_requests=3), SlotInputs(tiny.options().limits, CPU)
    samplings = [
        Sampling(max_tokens=9),
        Sampling(max_tokens=5, temperature=0.7, top_p=0.9, seed=1),
        Sampling(max_tokens=7, temperature=1.5, seed=2),
    ]
    for prompt, sampling in zip(([1, 2], [3], [4, 5, 6]), samplings, strict=True):
        engine.add(prompt, sampling)
    scheduler = engine._scheduler
    started = scheduler.admit()[1:]
    slots.load(started, scheduler.block_table[1:3])
    assert slots.limit.tolist() == [0, 6, 10, 0]
    assert slots.temperature.tolist() == pytest.approx([0.0, 0.7, 1.5, 0.0])
    assert slots.top_p.tolist() == pytest.approx([1.0, 0.9, 1.0, 1.0])
    assert torch.equal(slots.block_table[1:3], torch.from_numpy(scheduler.block_table[1:3]))
    for request in started:
        begin = request.prompt_len
        noise = slots.noise[request.slot, begin : begin + request.max_output].numpy()
        assert np.array_equal(noise, request.noise)
        assert not slots.noise[request.slot, begin + request.max_output :].any()
