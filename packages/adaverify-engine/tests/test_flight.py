"""Steps under way: in order, read before they are dropped, each with what it was launched with."""

from __future__ import annotations

from time import perf_counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from adaverify_contracts import Limits, StepState
from adaverify_engine.flight import AHEAD, Flight
from adaverify_engine.results import ResultRing

LIMITS = Limits(max_requests=2, draft_tokens=1, max_model_len=16, page_size=4)


class Counting:
    """A verifier whose replay writes its number into the results; ``serves`` False has no size for any."""

    def __init__(self, ring, serves=True):
        self.ring, self.serves, self.launched = ring, serves, 0
        self.prepared = []

    def launch(self, plan, state):
        if not self.serves:
            return None
        self.launched += 1
        self.ring.device_results.accepted.fill_(self.launched)
        return state

    def prepare(self):
        self.prepared.append(self.ring.taken)


class Late(ResultRing):
    """A ring whose results have not arrived when they are asked for; counts what was taken."""

    late, taken = True, 0

    def arrived(self, index):
        return super().arrived(index) and not self.late

    def take(self, index, rows):
        self.taken += 1
        return super().take(index, rows)


def state_of(step):
    return StepState(
        step=step,
        slots=np.arange(2),
        generations=np.zeros(2, dtype=np.int64),
        scheduled=np.ones(2, dtype=np.int64),
        emitting=2,
        kv_tokens=8,
    )


@pytest.fixture
def ring():
    return ResultRing(LIMITS, torch.device("cpu"))


def test_steps_are_read_in_order_with_their_own_results(ring):
    """The results of a step are its own although the next one ran before they were read."""
    flight = Flight(Counting(ring), ring)
    for step in range(AHEAD):
        assert flight.launch(state_of(step), SimpleNamespace(), f"rows of {step}", 0.0)
    assert [state.step for state in flight.states] == [0, 1]
    for step in range(AHEAD):
        landed = flight.land()
        assert (landed.state.step, landed.rows) == (step, f"rows of {step}")
        assert landed.results.accepted.tolist() == [step + 1] * 2
        assert landed.at >= landed.seconds > 0 and landed.waited <= landed.seconds
    assert len(flight) == 0


def test_a_step_stays_under_way_until_it_is_dropped(ring):
    """A reader that is interrupted while it hands results out finds them again."""
    flight = Flight(Counting(ring), ring)
    flight.launch(state_of(7), SimpleNamespace(), None, 0.0)
    assert flight.read().state is flight.read().state
    assert len(flight) == 1
    flight.drop()
    assert len(flight) == 0


def test_time_before_the_step_in_front_was_read_is_not_its_own(ring):
    """Two steps that ran behind one another share no second."""
    flight = Flight(Counting(ring), ring)
    flight.launch(state_of(0), SimpleNamespace(), None, 0.0)
    flight.launch(state_of(1), SimpleNamespace(), None, 0.0)
    first, second = flight.land(), flight.land()
    assert second.seconds == pytest.approx(second.at - first.at)


def test_a_step_that_no_captured_size_serves_is_not_under_way(ring):
    flight = Flight(Counting(ring, serves=False), ring)
    assert not flight.launch(state_of(0), SimpleNamespace(), None, 0.0)
    assert len(flight) == 0


def test_steps_that_are_read_late_are_not_timed_and_the_next_one_is(ring):
    """The host does something else between launching and reading: how long the step ran, it cannot tell."""
    flight = Flight(Counting(ring), ring)
    flight.launch(state_of(0), SimpleNamespace(predicted_seconds=0.5), None, 0.0)
    flight.launch(state_of(1), SimpleNamespace(predicted_seconds=None), None, 0.0)
    flight.leave()
    flight.launch(state_of(2), SimpleNamespace(predicted_seconds=0.25), None, 0.0)
    late = [flight.land(), flight.land()]
    assert [(one.seconds, one.host_seconds) for one in late] == [(None, None)] * 2
    flight.resume()
    resumed = perf_counter()
    landed = flight.land()
    assert 0 < landed.seconds <= landed.at - late[1].at
    assert landed.seconds == pytest.approx(landed.at - resumed, abs=1e-3)
    assert landed.host_seconds == landed.seconds - landed.waited


def test_what_is_left_of_the_steps_under_way_is_foreseen_by_their_plans(ring):
    """The oldest has run since it was launched, or since the one before it was read."""
    flight = Flight(Counting(ring), ring)
    assert flight.seconds_left() == 0
    for step, foreseen in enumerate((50.0, None)):
        flight.launch(state_of(step), SimpleNamespace(predicted_seconds=foreseen), None, perf_counter() - 20)
    assert flight.seconds_left() == pytest.approx(30.0, abs=1.0)
    flight.land()
    assert flight.seconds_left() == 0, "what has no price counts nothing"
    flight.launch(state_of(2), SimpleNamespace(predicted_seconds=40.0), None, perf_counter() - 20)
    assert flight.seconds_left() == pytest.approx(40.0, abs=1.0), "it waits for the step before it"
    flight.land(), flight.land()
    flight.launch(state_of(3), SimpleNamespace(predicted_seconds=10.0), None, perf_counter() - 20)
    assert flight.seconds_left() == pytest.approx(10.0, abs=1.0), "since the last one was read"


def test_a_read_that_waits_prepares_the_next_plan_first():
    """Once, before it waits; a read that finds its results there has no time to spare."""
    ring = Late(LIMITS, torch.device("cpu"))
    verifier = Counting(ring)
    flight = Flight(verifier, ring)
    for step in range(2):
        flight.launch(state_of(step), SimpleNamespace(), None, 0.0)
    flight.land()
    assert verifier.prepared == [0]
    ring.late = False
    flight.land()
    assert verifier.prepared == [0] and ring.taken == 2


def test_a_step_stays_under_way_when_preparing_fails():
    """The error is shown, and the results can still be read."""
    ring = Late(LIMITS, torch.device("cpu"))
    verifier = Counting(ring)
    flight = Flight(verifier, ring)
    flight.launch(state_of(3), SimpleNamespace(), None, 0.0)
    verifier.prepare = lambda: {}["nothing"]
    with pytest.raises(KeyError):
        flight.read()
    del verifier.prepare
    assert flight.land().state.step == 3
