"""What both oracles know, the sizes they choose from, and where requests start and walk."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from adaverify.bench.endtoend.arms import Oracle, OurSteps
from adaverify.bench.endtoend.deck import Curve, wanted_tiers
from adaverify.bench.endtoend.oracle import best_budget
from adaverify.bench.endtoend.rounds import run_round
from adaverify.bench.endtoend.text import Cursors
from adaverify_replay.simulate import best_admitted
from adaverify_verification import admit
from adaverify_verification.quantise import scores as survivals

K = 7


@pytest.mark.parametrize("requests", [1, 4, 64])
def test_every_fixed_k_has_a_tier_of_its_own(requests):
    tiers = wanted_tiers(requests, K)
    assert {requests * (k + 1) for k in range(K + 1)} <= set(tiers)
    assert tiers[0] == requests
    assert tiers[-1] == requests * (K + 1)


def test_the_oracle_is_the_best_of_all_prefixes():
    """Against every budget and every split of three requests."""
    rng = np.random.default_rng(1)
    tiers = np.array([3, 5, 8, 12])
    for _ in range(20):
        truth, seconds = rng.integers(0, 4, 3), np.sort(rng.uniform(1.0, 2.0, 4))

        def rate(prefix, truth=truth, seconds=seconds):
            used = 3 + sum(prefix)
            kept = 3 + sum(min(a, b) for a, b in zip(prefix, truth, strict=True))
            return kept / seconds[np.searchsorted(tiers, used)]

        best = max(rate(prefix) for prefix in itertools.product(range(4), repeat=3))
        prefix = best_admitted(truth, Curve(tiers, seconds).price)
        assert (prefix <= truth).all()
        assert rate(prefix) == pytest.approx(best)


def test_the_budget_oracle_ranks_as_the_planner_does():
    """Its prefixes are those of the total order, for the budget with the best realised rate."""
    rng = np.random.default_rng(2)
    tiers, seconds = np.array([4, 8, 16, 32]), np.array([1.0, 1.2, 1.7, 3.0])
    for _ in range(10):
        scores, truth = rng.normal(0, 2, (4, K)).astype(np.float32), rng.integers(0, K + 1, 4)
        ranked = survivals(1.0 / (1.0 + np.exp(-scores)))
        splits = [admit(ranked, np.full(4, K), int(tier) - 4) for tier in tiers]
        rates = [(4 + np.minimum(one, truth).sum()) / cost for one, cost in zip(splits, seconds, strict=True)]
        budget, prefix = best_budget(scores, truth, tiers, seconds)
        assert budget == int(tiers[int(np.argmax(rates))]) - 4
        assert prefix.tolist() == splits[int(np.argmax(rates))].tolist()


def test_the_oracle_verifies_no_draft_that_fails(deck, priced):
    found = run_round(
        OurSteps(deck, Oracle(deck, priced, ranked=False)), deck.ground.text.starts(3, 0), least=20
    )
    assert found.verified == found.accepted > 0


def test_requests_start_apart_and_walk_through_all_of_the_text(text):
    starts = [text.starts(4, block) for block in range(3)]
    assert all(len(set(one.tolist())) == 4 and one.max() < 400 for one in starts)
    assert len({one[0] for one in starts}) == 3
    evenly = np.concatenate([text.starts(4, block, 5) for block in range(5)])
    assert sorted(evenly.tolist()) == list(range(0, 400, 20))
    assert [text.starts(1, block, 3).tolist() for block in range(3)] == [[0], [133], [266]]
    cursors = Cursors(text, np.array([399, 5]))
    text.accepted[[399, 5]] = 3, 2
    assert cursors.advance(np.array([7, 1])).tolist() == [3, 1]
    assert cursors.at.tolist() == [3, 7]
