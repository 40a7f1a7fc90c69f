"""Trim-invariant requests: the same tokens whatever is drafted, by whom, and how much of it is verified."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from adaverify_contracts import BudgetReads, EngineError, PolicyDescriptor, Seen, hookimpl
from adaverify_engine import Sampling
from adaverify_engine.compare import compare
from adaverify_engine.drafters import LookupDrafter, NgramDrafter

MODES = ("none", "fixed", "adaptive")
SAMPLING = [
    Sampling(
        temperature=0.6 + 0.1 * n, top_p=1.0 - 0.05 * (n % 3), seed=n, max_tokens=24, trim_invariant=True
    )
    for n in range(6)
]


def texts(engine, prompts, sampling=SAMPLING):
    ids = [engine.add(prompt, one) for prompt, one in zip(prompts, sampling, strict=True)]
    done = engine.run()
    return [done[request].tokens for request in ids]


def test_tokens_are_bit_identical_for_every_mode_width_drafter_and_company(make_engine, tiny):
    """Float32: the oracle is plain decoding one request at a time, with the noise of each position."""
    prompts, model = tiny.prompts(6, seed=9), tiny.Decoder()
    plain = texts(make_engine("none", model=model, max_requests=1, draft_tokens=0), prompts)
    trimmed = accepted = 0
    for mode, width, requests in (("fixed", 5, 4), ("adaptive", 5, 4), ("adaptive", 1, 2)):
        sizes = {"draft_tokens": width, "max_requests": requests}
        limits, cpu = tiny.options(**sizes).limits, torch.device("cpu")
        drafters = [
            (NgramDrafter(limits, cpu), None),
            (LookupDrafter(limits, cpu), None),
            (tiny.Drawing(limits, model, seed=width), Seen.PREFIX),
            (tiny.Drawing(limits, model, drawn_score=True), Seen.DRAWN_TOKEN),
        ]
        for drafter, draws in drafters:
            engine = make_engine(mode, model=model, drafter=drafter, draws=draws, **sizes)
            assert texts(engine, prompts) == plain, (mode, width, requests, type(drafter).__name__)
            trimmed += engine.stats.drafted - engine.stats.verified
            accepted += engine.stats.accepted
    assert trimmed > 100
    assert accepted > 100


def test_without_it_a_drafter_that_draws_changes_the_text_with_the_trimming(make_engine, tiny):
    """Rejection sampling keeps the law and not the text: the mode is needed, and the test above can fail."""
    prompts, model = tiny.prompts(6, seed=9), tiny.Decoder()
    plain = [Sampling(temperature=0.9, seed=n, max_tokens=24) for n in range(6)]
    found = set()
    for mode in MODES:
        drafter = tiny.Drawing(tiny.options().limits, model)
        engine = make_engine(mode, model=model, drafter=drafter, draws=Seen.PREFIX)
        found.add(tuple(texts(engine, prompts, plain)))
    assert len(found) > 1


class Forced:
    """Chooses the budgets it was given, in turn, and says that nothing else gains."""

    def __init__(self, budgets):
        self.budgets, self.index = itertools.cycle(budgets), 0

    @hookimpl
    def adaverify_register_policies(self):
        return [PolicyDescriptor("forced", BudgetReads.LIVE, lambda: self)]

    def choose(self, candidates):
        self.index = min(next(self.budgets), len(candidates.budgets) - 1)
        return self.index

    def gains(self, candidates):
        gains = np.zeros(len(candidates.budgets))
        gains[self.index] = 0.0 if self.index == len(gains) - 1 else 100.0
        return gains


@pytest.mark.parametrize("budgets", [(0,), (1,), (0, 7, 2), (20, 3), (5, 1, 0, 12)])
def test_every_budget_gives_the_same_tokens(make_engine, tiny, budgets):
    """Budgets forced from nothing to everything, changing from step to step: the text does not tell."""
    prompts, model, asked = tiny.prompts(4, seed=2), tiny.Decoder(), SAMPLING[:4]
    plain = texts(make_engine("none", model=model), prompts, asked)
    records, settings = [], tiny.settings(signal="optimistic", policy="forced", warmup_steps=0)
    engine = make_engine(
        "adaptive",
        model=model,
        drafter=tiny.Drawing(tiny.options().limits, model),
        draws=Seen.PREFIX,
        settings=settings,
        plugin=Forced(budgets),
    )
    engine.verifier.add_observer("test", records.append)
    assert texts(engine, prompts, asked) == plain
    engine.verifier.drain()
    assert {record.verified for record in records} >= {*budgets} - {20}
    assert "lossless-downgrade" not in engine.verifier.counters


def test_greedy_invariant_and_other_sampled_requests_share_a_batch(make_engine, tiny):
    """Each is judged in its own way, in one verdict."""
    prompts, model = [[3, 1, 4], [2, 7, 1], [8, 2, 8]], tiny.Decoder()
    asked = [Sampling(max_tokens=20), SAMPLING[1], Sampling(temperature=1.0, seed=4, max_tokens=20)]
    drafter = tiny.Drawing(tiny.options().limits, model)
    engine = make_engine("fixed", model=model, drafter=drafter, draws=Seen.PREFIX)
    mixed = texts(engine, prompts, asked)
    assert list(mixed[0]) == tiny.greedy(model, prompts[0], 20)
    assert mixed[1] == texts(make_engine("none", model=model), prompts[1:2], asked[1:2])[0]


def test_compare_holds_trim_invariant_tokens_against_each_other(make_engine, tiny):
    """They count as compared, as greedy ones do; other sampled requests do not."""
    model, prompts = tiny.Decoder(), tiny.prompts(4)
    engines = {mode: make_engine(mode, model=model) for mode in MODES}
    result = compare(engines, prompts, SAMPLING[:4], rounds=1, warmup=0)
    assert (result.compared, result.identical, result.divergences) == (4, True, ())
    other = compare(engines, prompts, Sampling(temperature=0.8, max_tokens=6), rounds=1, warmup=0)
    assert (other.compared, other.identical) == (0, None)


def test_it_is_a_truth_value():
    """Anything else is refused by name."""
    with pytest.raises(EngineError, match="trim_invariant"):
        Sampling(trim_invariant="yes")
