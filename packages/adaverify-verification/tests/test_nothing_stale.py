"""What a plan keeps from the plan before it: a snapshot's digest and where prices lie, and no more."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import Snapshot, StepOutcome, StepState
from adaverify_verification import CostModel, CostTable, Fingerprint
from adaverify_verification.candidates import ranked_scores, sums, worths
from adaverify_verification.lagged import LaggedReader
from adaverify_verification.quantise import scores
from adaverify_verification.ranking import Ranking
from adaverify_verification.rows import frozen, kept
from adaverify_verification.tiers import Tiers

K, R = 3, 4
CONFIDENCES = st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0, 1.5, -0.25, float("nan")])


def snapshot_of(step, slots, generations, values):
    confidences = np.array(values, dtype=np.float32).reshape(-1, K)[: len(slots)]
    return Snapshot(step, np.array(slots), np.array(generations), confidences)


def state_of(step, slots, generations, scheduled=None):
    rows = len(slots)
    drafts = np.full(rows, K) if scheduled is None else np.array(scheduled)
    return StepState(step, np.array(slots, np.int64), np.array(generations, np.int64), drafts, rows)


@given(
    st.lists(
        st.tuples(
            st.lists(CONFIDENCES, min_size=R * K, max_size=R * K),
            st.permutations(range(R)),
            st.permutations(range(R)),
            st.lists(st.integers(0, K), min_size=R, max_size=R),
            st.integers(1, 3),
        ),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=80, deadline=None)
def test_a_reader_that_has_read_before_says_what_a_new_one_says(steps):
    """Snapshots that come again, and batches in another order, of other requests, with fewer drafts."""
    reader = LaggedReader(K)
    for step, (values, published, planned, scheduled, times) in enumerate(steps):
        snapshot = snapshot_of(step, published, [0] * R, values)
        for _ in range(times):
            for slots, drafts in ((published, None), (planned, None), (planned, scheduled)):
                state = state_of(step + 1, slots, [0, 0, 0, 1], drafts)
                found, fresh = (one.survivals(snapshot, state) for one in (reader, LaggedReader(K)))
                assert found.ranking.scores.tolist() == fresh.ranking.scores.tolist()
                assert found[1:] == fresh[1:]
                total, scores_ = state.total_scheduled, fresh.ranking.scores
                for budgets in (np.arange(total + 1), np.array([total // 2])):
                    expected = worths(sums(ranked_scores(scores_, state.scheduled)), budgets)
                    for emitting in (R, R + 1):
                        tokens = found.ranking.tokens(state.scheduled, total, budgets, emitting)
                        assert tokens.tolist() == (expected + emitting).tolist()


def test_a_snapshot_is_digested_once():
    """The same object again is the same ranking; an equal one of another publication is not taken for it."""
    reader, slots = LaggedReader(K), list(range(R))
    first = snapshot_of(0, slots, [0] * R, [0.5] * (R * K))
    state = state_of(1, slots, [0] * R)
    found = reader.survivals(first, state).ranking
    assert reader.survivals(first, state).ranking is found
    assert found.everything is found.everything
    other = replace(first, confidences=first.confidences + np.float32(0.25))
    assert reader.survivals(other, state).ranking.scores.tolist() == scores(other.confidences).tolist()
    assert reader.survivals(None, state).lag is None


def test_the_worth_of_some_requests_is_that_of_their_drafts():
    ranking = Ranking(np.array([[65535, 40000], [30000, 20000], [65535, 1]]))
    assert ranking.worth_of(np.array([2, 0, 1])) == (65535 + 40000 + 65535) / 65535
    assert ranking.worth_of(np.zeros(3, np.int64)) == 0.0


@pytest.mark.parametrize(
    "values", [[3, 1], np.array([3, 1], np.int32), np.array([[3, 1]]), np.array([3]), []]
)
def test_rows_are_kept_only_where_they_are_the_same(values):
    """A caller that reuses its array for the next batch changes nothing of the last one."""
    mine = frozen([3, 2])
    assert kept(mine, mine) is mine and kept(mine, np.array([3, 2])) is mine
    other = np.array([3, 2])
    other[1] = 1
    for changed in (values, other):
        found = kept(mine, changed)
        assert found is not mine and found.dtype == np.int64 and not found.flags.writeable
        assert found.tolist() == np.asarray(changed).tolist()
    assert mine.tolist() == [3, 2]


# Measured at every count, at every third, and none of them.
GRIDS = {"each": range(1, 65), "gaps": range(1, 65, 3)}
SIZES = {
    "side by side": np.arange(8, 41),
    "tiers": np.array([8, 8, 16, 24, 40]),
    "a third": np.arange(1, 64, 3),
    "one": np.array([16]),
    "past the end": np.array([60, 64, 90]),
}


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_prices_that_are_asked_for_again_are_those_in_force(grid, sizes):
    """Steps, a rebase and other curves in between: a kept place in the table never keeps a price."""
    points = [(n, r, 128, 0.01 + 0.001 * n + 0.0001 * r) for r in (4, 8) for n in grid]
    model = CostModel(CostTable.from_points(Fingerprint.from_mapping({"stale": 1}), points))
    sizes = sizes.copy()
    sizes.setflags(write=False)
    generator, seen = np.random.default_rng(3), set()
    for step in range(200):
        for requests in (4, 8, 6):
            asked = model.executed_seconds(sizes, requests, 128.0)
            # What can be written to is never recognised, so this one is looked up anew.
            assert asked.tolist() == model.executed_seconds(sizes.copy(), requests, 128.0).tolist()
        seen.add(float(asked[0]))
        # Then the machine gets five times as fast, for so long that the table is brought down to it.
        speed, size = 0.2 if step > 30 else 1.0, int(generator.integers(1, 65))
        measured = 0.0108 + 0.001 * size
        model.refresh(size, 8, 128.0, speed * measured * float(0.9 + 0.2 * generator.random()), host=1e-3)
    assert len(seen) > 50 and not model.strayed


def test_tiers_that_are_set_anew_price_the_next_plan(build):
    """The candidates of a shape are kept by the tiers they belong to."""
    manager = build.manager(build.table(lambda n: 0.02 + 0.001 * n, (1, 4), 32), tiers=(8, 16, 32))
    state = build.state(0, 4)
    manager.publish(0, state.slots, state.generations, build.logits(np.full((4, 7), 0.1)))
    before = manager.plan(state)
    manager.set_tiers((6, 32))
    after = manager.plan(state)
    assert (before.tier, after.tier) == (8, 6)
    assert after.predicted_seconds == pytest.approx(0.026)
    assert Tiers((6, 32)).candidates(4, 28)[0].tolist() == [0, 2, 28]


def test_a_step_that_took_longer_is_in_the_next_plan(build):
    """The same snapshot, batch and tier: what has changed is the price, and the plan says so."""
    manager = build.manager(
        build.table(lambda n: 0.02 + 0.001 * n, (1, 4), 32), tiers=(8, 16, 32), online=True
    )
    state = build.state(0, 4)
    scores_of = build.logits(np.full((4, 7), 0.1))
    manager.publish(0, state.slots, state.generations, scores_of)
    foreseen = []
    for _ in range(4):
        plan = manager.plan(state)
        assert plan.predicted_seconds == float(manager.cost.seconds(plan.tier, 4, 128.0))
        foreseen.append(plan.predicted_seconds)
        lens = torch.full((4,), 7, dtype=torch.int32)
        admitted = manager.assign(plan, lens, lens, plan.tokens).admitted.numpy().astype(np.int64)
        outcome = StepOutcome(
            step=0,
            slots=state.slots,
            generations=state.generations,
            drafted=state.scheduled,
            admitted=admitted,
            accepted=np.zeros(4, np.int64),
            scores=scores_of.numpy(),
            learn=np.ones(4, dtype=bool),
            sampled=np.zeros(4, dtype=bool),
            emitted=4,
            seconds=1.2 * plan.predicted_seconds,
        )
        assert manager.observe(outcome, plan, "reference").fallbacks == ()
    assert foreseen == sorted(set(foreseen))
