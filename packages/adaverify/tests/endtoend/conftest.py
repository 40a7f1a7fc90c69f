"""Toy records and a cheap body in place of the real ones, and a deck with prices."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from adaverify.bench.endtoend import sources
from adaverify.bench.endtoend.curve import table_of
from adaverify.bench.endtoend.deck import Deck
from adaverify.bench.endtoend.ground import open_ground
from adaverify.bench.endtoend.text import Text
from adaverify.bench.timing import DeviceTimer
from adaverify_contracts import (
    BenchmarkOptions,
)
from adaverify_runtime import doctor

K = 7


def records(positions=400, seed=0):
    """Drafts whose scores say, with noise, how many will be accepted."""
    rng = np.random.default_rng(seed)
    accepted = rng.integers(0, K + 1, positions)
    scores = 3.0 * np.sign(accepted[:, None] - np.arange(K) - 0.5) + rng.normal(0.0, 1.5, (positions, K))
    return Text(scores.astype(np.float32), accepted.astype(np.int64), {"model": "toy", "drafter": "toy"})


def cheap_body(sizes, limits, device, plugins, capability):
    """A body of three products, for tests of what surrounds it."""
    weight = torch.randn(64, 64) / 8.0

    def decode(staged, kv_lens, block_table):
        state = torch.ones(len(staged.assignment.token_request), 64)
        for _ in range(3):
            state = torch.tanh(state @ weight)
        return state.argmax(1).int()

    count, width = limits.max_requests, limits.table_width
    table = 1 + np.arange(count * width, dtype=np.int32).reshape(count, width)
    return sources.MadeBody(SimpleNamespace(decode=decode), table, {})


def replace_sources(monkeypatch):
    """Toy records in place of the real ones."""
    made = records()
    monkeypatch.setattr(sources, "load_text", lambda: made)
    return made


@pytest.fixture
def text(monkeypatch):
    return replace_sources(monkeypatch)


@pytest.fixture(scope="session")
def ground():
    """Made once: it changes with nothing that a test does."""
    with pytest.MonkeyPatch.context() as patch:
        replace_sources(patch)
        patch.setattr(sources, "make_body", cheap_body)
        options = BenchmarkOptions(
            device="cpu",
            capability=doctor(device="cpu").capability,
            timer=DeviceTimer("cpu", 2),
            repeat=2,
            requests=(3,),
            steps=3,
        )
        made = open_ground(options)
        made.body()
    # Prices are made up, so real step times must not correct them; the toy scores need no calibration.
    planner = made.settings.planner.model_copy(update={"online": False, "signal": "drafter"})
    made.settings = replace(made.settings, planner=planner)
    return made


@pytest.fixture(scope="module")
def deck(ground):
    made = Deck(ground, 3)
    yield made
    made.close()


@pytest.fixture
def own_deck(ground):
    """One that a test may break."""
    made = Deck(ground, 3)
    yield made
    made.close()


@pytest.fixture(scope="module")
def priced(deck):
    """A deck with a curve on which trimming pays: a step's time grows with its tokens."""
    points = [{"tokens": tier, "seconds": 1e-3 * (1 + 0.2 * tier)} for tier in deck.tiers]
    return deck.price(table_of(deck, {"points": points}))
