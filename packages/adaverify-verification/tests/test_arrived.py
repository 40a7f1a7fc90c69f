"""Confidences digested before anybody plans by them: the plans stay the same, and find the work done."""

import numpy as np
import pytest

from adaverify_contracts import BudgetReads, PolicyDescriptor, Seen, SignalDescriptor
from adaverify_verification import RatioPolicy, lagged
from adaverify_verification.forecast import LEAST_PAIRS
from adaverify_verification.ranking import Ranking
from adaverify_verification.relay import CpuRelay
from adaverify_verification.signals.drafter import DrafterSignal

K = 7


@pytest.fixture
def served(build):
    """Return a function that makes a manager whose sampled steps may read no confidences of their own."""
    table = build.table(lambda n: 0.02 + 0.001 * n, (1, 6), 48)

    def make(**more):
        return build.manager(table, requests=6, tiers=(8, 16, 32, 48), deterministic=False, **more)

    return make


@pytest.fixture
def digests(monkeypatch):
    """The steps whose snapshots were digested, in order."""
    steps, digested = [], lagged._digested

    def counted(snapshot):
        steps.append(snapshot.step)
        return digested(snapshot)

    monkeypatch.setattr(lagged, "_digested", counted)
    return steps


def publish(build, manager, step, confidences):
    state = build.state(step, len(confidences))
    manager.publish(step, state.slots, state.generations, build.logits(confidences))


@pytest.mark.parametrize("seed", range(20))
def test_plans_are_the_same_whenever_confidences_are_digested(build, served, seed):
    """Before and after a publication, often or never, sampled or not, with batches that change."""
    ours, others, generator = served(), served(), np.random.default_rng(seed)
    digested = 0
    for step in range(12):
        requests = int(generator.integers(1, 7))
        digested += sum(ours.prepare() for _ in range(generator.integers(0, 3)))
        if generator.random() < 0.7:
            confidences = generator.random((requests, K))
            for manager in (ours, others):
                publish(build, manager, step, confidences)
        digested += sum(ours.prepare() for _ in range(generator.integers(0, 3)))
        state = build.state(step, requests, sampled=bool(generator.integers(0, 2)))
        assert ours.plan(state) == others.plan(state)
    assert ours.counters == others.counters
    assert digested > 0


@pytest.mark.parametrize("seed", range(4))
def test_late_confidences_are_drawn_the_same_whenever_they_were_looked_at(build, served, seed):
    """Late by one step or two, long enough that much is forecast; batches of two sizes, steps left out."""
    ours, others, generator = served(), served(), np.random.default_rng(seed)
    level, drawn, step = 0.0, 0, 0
    for _ in range(6 * LEAST_PAIRS):
        level = 0.6 * level + 0.4 * generator.standard_normal()
        requests = 6 if generator.random() < 0.9 else 3
        confidences = 1.0 / (1.0 + np.exp(-level - 0.5 * generator.standard_normal((requests, K))))
        for manager in (ours, others):
            publish(build, manager, step, confidences)
        if generator.random() < 0.8:
            assert ours.prepare()
        late = int(generator.choice([1, 1, 1, 2]))
        for asked in range(step + late, step + late + int(generator.choice([1, 1, 2]))):
            state = build.state(asked, requests, emitting=requests - int(generator.random() < 0.1))
            found = ours.plan(state)
            assert found == others.plan(state) and found.lag
            every = ranked_tokens(confidences)
            drawn += abs(found.full_tokens - state.emitting - every) > 0.01
        step += int(generator.choice([1, 1, 1, 2]))
    assert drawn > LEAST_PAIRS


def ranked_tokens(confidences):
    """Return the accepted tokens of all drafts where each survives as its confidences say."""
    return float(np.cumprod(confidences, axis=1).sum())


def test_a_forecast_that_was_looked_at_is_not_made_again(build, served, monkeypatch):
    """The plan of the next step finds it made, with its sums."""
    manager, generator = served(), np.random.default_rng(0)
    for step in range(3 * LEAST_PAIRS):
        publish(build, manager, step, generator.random((4, K)))
        manager.plan(build.state(step + 1, 4))
    publish(build, manager, step + 1, generator.random((4, K)))
    made = []
    monkeypatch.setattr(Ranking, "like", lambda *_, like=Ranking.like: made.append(like(*_)) or made[-1])
    assert manager.prepare() and len(made) == 1
    monkeypatch.setattr("adaverify_verification.ranking.ranked_scores", _never)
    plan = manager.plan(build.state(step + 2, 4))
    assert len(made) == 1 and plan.lag == 1
    assert plan.full_tokens == made[0].emitted(4)[-1]


def test_a_plan_finds_what_was_digested_before_it(build, served, digests):
    """The newest, and the one before it where the bound excludes the newest: nothing is digested twice."""
    manager = served()
    assert not manager.prepare(), "nothing was published"
    for step in (0, 1):
        publish(build, manager, step, np.full((4, K), 0.5))
        assert manager.prepare() and not manager.prepare()
    assert digests == [0, 1]
    assert manager.plan(build.state(1, 4)).lag == 0
    assert manager.plan(build.state(1, 4, sampled=True)).lag == 1
    assert digests == [0, 1]


def test_the_whole_batch_is_ranked_before_the_plan(build, served, monkeypatch):
    manager = served()
    publish(build, manager, 0, np.full((4, K), 0.5))
    manager.prepare()
    monkeypatch.setattr("adaverify_verification.ranking.ranked_scores", _never)
    assert manager.plan(build.state(0, 4)).budget < 4 * K


def test_what_was_digested_is_not_read_where_the_law_forbids_it(build, served):
    """A sampled step's own confidences: digested or not, its budget is that of a step without them."""
    manager, blind = served(), served()
    for one in (manager, blind):
        publish(build, one, 0, np.full((4, K), 0.9))
    publish(build, manager, 1, np.full((4, K), 0.01))
    assert manager.prepare()
    state = build.state(1, 4, sampled=True)
    assert manager.plan(state) == blind.plan(state)
    assert manager.plan(build.state(1, 4)).budget < manager.plan(state).budget


def test_newer_confidences_than_the_digested_ones_are_read(build, served, digests):
    manager = served()
    publish(build, manager, 0, np.full((4, K), 0.9))
    manager.prepare()
    publish(build, manager, 1, np.full((4, K), 0.01))
    assert manager.plan(build.state(1, 4)).lag == 0
    assert digests == [0, 1]


def test_nothing_is_digested_where_nothing_reads_it(build, served, digests):
    """A closed manager is asked by an engine that still reads its last steps: no error, and no relay."""
    manager, none = served(), served(mode="none")
    publish(build, none, 0, np.full((4, K), 0.5))
    assert not none.prepare()
    publish(build, manager, 0, np.full((4, K), 0.5))
    manager.close()
    assert not manager.prepare()
    assert digests == []


def test_a_relay_that_fails_is_not_hidden_and_leaves_all_as_it_was(build, served, monkeypatch):
    manager, untouched = served(), served()
    for one in (manager, untouched):
        publish(build, one, 0, np.full((4, K), 0.5))
    with monkeypatch.context() as broken:
        broken.setattr(CpuRelay, "latest", _never)
        with pytest.raises(AssertionError):
            manager.prepare()
    assert manager.plan(build.state(0, 4)) == untouched.plan(build.state(0, 4))
    assert not manager.prepare(), "the plan had digested it"


def test_neither_signal_nor_policy_is_called(build, served):
    """They are somebody else's, and their time is the plan's."""
    calls = []

    def noting(kind, method):
        inner = getattr(kind, method)

        def call(self, *arguments):
            calls.append(method)
            return inner(self, *arguments)

        return call

    names = ("confidences", "ready", "learn", "forget")
    signal = type("Noting", (DrafterSignal,), {name: noting(DrafterSignal, name) for name in names})
    policy = type("Noting", (RatioPolicy,), {name: noting(RatioPolicy, name) for name in ("choose", "gains")})
    manager = served(
        signal=SignalDescriptor("noting", Seen.PREFIX, True, signal),
        policy=PolicyDescriptor("noting", BudgetReads.HISTORY, policy),
    )
    publish(build, manager, 0, np.full((4, K), 0.5))
    assert calls == ["confidences"]
    assert manager.prepare()
    assert calls == ["confidences"]
    manager.plan(build.state(0, 4))
    assert set(calls) == {"confidences", "ready", "choose", "gains"}


def _never(*_):
    raise AssertionError("this was not to be called")
