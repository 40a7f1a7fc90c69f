"""Every arm over recorded truth, and what is caught before anything is timed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaverify.bench.endtoend.arms import Fixed, Oracle, OurSteps, plain_manager
from adaverify.bench.endtoend.arms_stage import make_arms
from adaverify.bench.endtoend.baseline import BodyGraphs
from adaverify.bench.endtoend.rounds import check_arm, run_round
from adaverify_contracts import EngineError, WrongValueError

K = 7


def test_every_arm_accepts_what_the_records_say(deck, priced):
    graphs = BodyGraphs(deck)
    graphs.capture()
    arms = make_arms(deck, graphs, priced)
    assert set(arms) == {
        "none", *(f"fixed-{k}" for k in range(1, 8)), "adaptive", "oracle", "oracle-budget",
        "published-fixed", "published", "published-ahead",
    }  # fmt: skip
    text = deck.ground.text
    verified = {}
    for name, steps in arms.items():
        check_arm(name, steps, text, text.starts(3, 0))
        found = run_round(steps, text.starts(3, 1), tokens=60, least=4)
        verified[name] = found.verified / found.steps
        assert found.tokens >= 60
        assert found.seconds == pytest.approx(sum(found.step_seconds))
        assert found.lags == {1 if name == "adaptive" else None: found.steps}
    assert verified["none"] == 0
    assert [verified[f"fixed-{k}"] for k in range(1, 8)] == [3 * k for k in range(1, 8)]
    assert verified["published-fixed"] == 21
    for name in ("adaptive", "oracle", "oracle-budget", "published", "published-ahead"):
        assert 0 < verified[name] < 21, f"{name} trimmed nothing"


def test_a_wrong_acceptance_is_caught_before_anything_is_timed(own_deck):
    """The device accepts everything; the host's records do not."""
    text = own_deck.ground.text
    own_deck.state.tables.accepted.fill_(K)
    with pytest.raises(WrongValueError, match="fixed-3 is not what the records say"):
        check_arm("fixed-3", OurSteps(own_deck, Fixed(own_deck, 3)), text, text.starts(3, 0))


def test_a_cursor_that_strays_is_caught(deck, monkeypatch):
    text = deck.ground.text
    steps = OurSteps(deck, Fixed(deck, 3))
    monkeypatch.setattr(steps, "positions", lambda: np.zeros(3, dtype=np.int64))
    with pytest.raises(WrongValueError, match="stands elsewhere"):
        check_arm("fixed-3", steps, text, text.starts(3, 0))


def test_a_forced_step_that_admits_something_else_is_caught(deck, priced, monkeypatch):
    """Prefixes that never reach the device."""
    steps = OurSteps(deck, Oracle(deck, priced, ranked=False))
    monkeypatch.setattr(deck.state, "force", lambda prefix: None)
    deck.state.slots.prefix.zero_()
    with pytest.raises(WrongValueError, match="other drafts than it was told"):
        run_round(steps, deck.ground.text.starts(3, 0), least=10)
    while len(steps):
        deck.flight.land()


def test_a_step_that_no_graph_serves_is_refused(deck):
    """A prefill token beside the requests: no captured decode step holds one."""
    state = deck.next_state(K)
    plan = plain_manager(deck, "fixed").plan(state)
    beside = replace(plan, certain_tokens=4, tokens=plan.tokens + 1, tier=plan.tier + 1)
    with pytest.raises(EngineError, match="no captured size"):
        deck.launch(state, beside, None, 0.0)
    assert len(deck.flight) == 0
