"""An outcome that is not that of its plan is counted by name and teaches nothing."""

import dataclasses

import numpy as np
import pytest

from adaverify_contracts import PlanError, StepOutcome
from adaverify_verification.signals.drafter import DrafterSignal

R, K = 4, 7
HALF = np.tile([0.9, 0.5, 0.3, 0.1, 0.1, 0.1, 0.1], (R, 1))


def steep(n):
    return 1.0 + 0.2 * n


class Pupil(DrafterSignal):
    """Remembers what it was taught."""

    def __init__(self, limits, device):
        super().__init__(limits, device)
        self.taught = []

    def learn(self, outcome):
        self.taught.append(outcome)


@pytest.fixture
def manager(build):
    from adaverify_contracts import Seen, SignalDescriptor

    pupil = SignalDescriptor("pupil", Seen.HISTORY, True, Pupil)
    return build.manager(build.table(steep, (1, R), 64), requests=R, signal=pupil, online=True)


def run(manager, build, step=0):
    """Publish, plan; return the plan and the outcome that fits it."""
    state = build.state(step, R, generations=np.arange(R))
    manager.publish(step, state.slots, state.generations, build.logits(HALF))
    plan = manager.plan(state)
    admitted = np.full(R, plan.budget // R)
    admitted[: plan.budget % R] += 1
    outcome = StepOutcome(
        step=step,
        slots=state.slots,
        generations=state.generations,
        drafted=state.scheduled,
        admitted=admitted,
        accepted=np.minimum(1, admitted),
        scores=np.zeros((R, K), np.float32),
        learn=np.ones(R, bool),
        sampled=np.zeros(R, bool),
        emitted=R + int(np.minimum(1, admitted).sum()),
        seconds=40.0,
    )
    return plan, outcome


def knowledge(manager):
    """What could have been learnt: signal, guard, prices, achieved rate."""
    prices = manager.cost.seconds(np.arange(1, 33), R, 128)
    return len(manager.signal.taught), manager.margin, prices.tolist(), manager._rate.value


def test_an_outcome_that_fits_is_learnt(manager, build):
    """Otherwise the tests below would pass for a manager that never learns."""
    before = knowledge(manager)
    plan, outcome = run(manager, build)
    assert manager.observe(outcome, plan, "reference").fallbacks == ()
    after = knowledge(manager)
    assert after[0] == 1
    assert after[2] != before[2]
    assert after[3] is not None


def reversed_rows(outcome):
    flipped = ("slots", "generations", "drafted", "admitted", "accepted", "scores", "learn", "sampled")
    return dataclasses.replace(outcome, **{name: getattr(outcome, name)[::-1] for name in flipped})


def shifted(outcome):
    """One draft more verified for the first request, one less for the last, and one lost."""
    return dataclasses.replace(
        outcome, admitted=outcome.admitted - np.array([1, 0, 0, 0]), accepted=0 * outcome.accepted
    )


MISFITS = {
    "rows in reversed order": (reversed_rows, "outcome-of-other-requests"),
    "slots alone reversed": (
        lambda o: dataclasses.replace(o, slots=o.slots[::-1]),
        "outcome-of-other-requests",
    ),
    "the slot's next request": (
        lambda o: dataclasses.replace(o, generations=o.generations + 1),
        "outcome-of-other-requests",
    ),
    "one request less": (
        lambda o: StepOutcome(
            **{
                field.name: value[:-1] if isinstance(value := getattr(o, field.name), np.ndarray) else value
                for field in dataclasses.fields(o)
                if field.init
            }
        ),
        "outcome-of-other-requests",
    ),
    "another step": (lambda o: dataclasses.replace(o, step=o.step + 1), "outcome-of-another-step"),
    "one draft less": (shifted, "verified-not-planned"),
    "drafts of another request": (
        lambda o: dataclasses.replace(o, drafted=np.array([7, 7, 7, 6])),
        "drafted-not-scheduled",
    ),
    "more tokens than queries": (lambda o: dataclasses.replace(o, emitted=999), "emitted-not-verified"),
    "one token too many": (
        lambda o: dataclasses.replace(o, emitted=o.emitted + 1),
        "emitted-not-verified",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_an_outcome_that_does_not_fit_its_plan_teaches_nothing(manager, build, name):
    """Labels of one request credited to another, a rate of tokens that nobody verified."""
    change, counter = MISFITS[name]
    before = knowledge(manager)
    plan, outcome = run(manager, build)
    record = manager.observe(change(outcome), plan, "reference")
    assert counter in record.fallbacks
    assert manager.counters[counter] == 1
    assert knowledge(manager) == before


def test_an_outcome_that_comes_twice_teaches_once(manager, build):
    """The second finds no open step."""
    plan, outcome = run(manager, build)
    manager.observe(outcome, plan, "reference")
    learnt = knowledge(manager)
    record = manager.observe(outcome, plan, "reference")
    assert record.fallbacks == ("outcome-of-another-step",)
    assert knowledge(manager) == learnt


def test_fewer_tokens_than_were_accepted_are_ordinary(manager, build):
    """A stop condition cuts what was decided behind it."""
    plan, outcome = run(manager, build)
    record = manager.observe(dataclasses.replace(outcome, emitted=1), plan, "reference")
    assert record.fallbacks == ()
    assert len(manager.signal.taught) == 1


def test_prefills_that_finish_emit_too(manager, build):
    """Two prefills end in this step: two tokens more than the decode requests account for."""
    state = build.state(0, R, other_tokens=9, emitting=R + 2)
    plan = manager.plan(state)
    _, outcome = run(build.manager(build.table(steep, (1, R), 64), requests=R), build)
    fitting = dataclasses.replace(
        outcome,
        generations=state.generations,
        admitted=np.full(R, K),
        accepted=np.full(R, K),
        emitted=R * K + R + 2,
    )
    assert plan.budget == R * K
    assert manager.observe(fitting, plan, "reference").fallbacks == ()


@pytest.mark.parametrize("which", ["outcome", "plan", "both"])
def test_nothing_is_observed_of_what_is_no_outcome(manager, build, which):
    """A typed error, and the step stays open for its real outcome."""
    plan, outcome = run(manager, build)
    wrong = {"outcome": (None, plan), "plan": (outcome, None), "both": (plan, outcome)}[which]
    with pytest.raises(PlanError, match="no outcome with its plan"):
        manager.observe(*wrong, "reference")
    assert manager.observe(outcome, plan, "reference").fallbacks == ()


@pytest.mark.parametrize("state", [None, 3, {"step": 1}])
def test_nothing_is_planned_for_what_is_no_step(manager, state):
    """``plan(None)`` was an AttributeError."""
    with pytest.raises(PlanError, match="no step"):
        manager.plan(state)


@pytest.mark.parametrize(("slot", "fits"), [(R - 1, True), (R, False), (10**12, False)])
def test_a_planned_slot_is_within_the_limits(manager, build, slot, fits):
    """The last slot, the first beyond, and one far away."""
    state = build.state(0, 1, slots=np.array([slot]))
    if fits:
        assert manager.plan(state).requests == 1
        return
    with pytest.raises(PlanError, match="does not fit the limits") as caught:
        manager.plan(state)
    assert caught.value.arrived["highest slot"] == slot
