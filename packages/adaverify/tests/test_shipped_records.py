"""The shipped records are of the shipped pair: every kind of text, and what an engine does."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import numpy as np
import pytest

from adaverify import session as sessions
from adaverify.prompts import human_eval_prompts
from adaverify_engine import Sampling
from adaverify_replay import BUNDLED, REGIMES, SOURCES, AcceptanceRecords
from adaverify_runtime import load_plugins

K = 7
PLUGINS = ("capability", "engine", "graphs", "reference", "smollm2", "verification")


@pytest.fixture(scope="module")
def records():
    return AcceptanceRecords.load()


def test_they_are_small_and_of_every_kind(records):
    assert BUNDLED.stat().st_size < 2 << 20
    assert records.positions > 5000
    assert (records.header.model, records.header.drafter) == ("smollm2-135m", "smollm2-block")
    assert records.draft_tokens == K
    for source in SOURCES:
        for regime in REGIMES:
            chosen = records.take(records.of(source, regime))
            assert chosen.positions > 300
            assert 0 < chosen.accepted.mean() < K


def test_scores_tell_good_drafts_from_bad(records):
    """Of two positions, one whose first draft is accepted and one whose is not, the former scores higher."""
    first = records.accepted > 0
    scores = records.scores[:, 0].astype(np.float64)
    ranks = np.argsort(np.argsort(scores)) + 1
    positives = int(first.sum())
    area = (ranks[first].sum() - positives * (positives + 1) / 2) / (positives * int((~first).sum()))
    assert area > 0.75


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_engine_gets_what_they_say(records, monkeypatch):
    """HumanEval/0 once more, every draft verified: the same scores and accepted drafts at every step."""

    def installed(settings):
        points = [EntryPoint(name, f"adaverify_{name}.hooks", "adaverify") for name in PLUGINS]
        return load_plugins(settings, points)

    monkeypatch.setattr(sessions, "load_plugins", installed)
    session = sessions.open_session(sessions.Choice(dtype="float32", device="cpu", draft_tokens=K))
    prompt = session.model.tokenizer.encode(human_eval_prompts(1)[0])
    assert len(prompt) == records.contexts[0]
    engine = session.sized(1, len(prompt) + 80).engine("fixed")
    steps = []
    engine.verifier.add_observer("test", steps.append)
    engine.add(prompt, Sampling(max_tokens=64))
    engine.run()
    engine.verifier.drain()
    at, compared = 0, 0
    for step in steps:
        if step.scheduled < K:
            continue  # the prompt's own step, or no room for K drafts
        np.testing.assert_allclose(records.scores[at], step.rows.scores[0], atol=0.03, rtol=1e-3)
        assert records.accepted[at] == step.accepted
        at, compared = at + step.accepted + 1, compared + 1
    engine.verifier.close()
    assert compared > 10
