"""The simulator: requests move by the truth, time passes by the table, and nobody beats the oracle."""

from itertools import product

import numpy as np
import pytest
import torch

from adaverify_contracts import (
    CalibrationError,
    CostTableError,
    DescriptorError,
    LayoutError,
    Limits,
    RecordsError,
)
from adaverify_replay.simulate import Cursors, Planning, Scene, arm_names, best_admitted, simulate, spread
from adaverify_replay.simulate.lagged import LaggedRelay
from adaverify_verification import DRAFTER, ManagerOptions

K = 5
TIERS = (4, 8, 12, 16, 24, 32, 48)


def walked(records, order, requests, admitted):
    """Walk by the definition, request by request, one step with ``admitted`` each; yields accepted."""
    queue = iter([order[(requests + at) % len(order)] for at in range(10_000)])
    at = [[order[row % len(order)], 0] for row in range(requests)]
    while True:
        accepted = []
        for one in at:
            at_row = records.starts[one[0]] + one[1]
            accepted.append(min(int(records.accepted[at_row]), admitted))
        yield accepted
        for one, count in zip(at, accepted, strict=True):
            one[1] += count + 1
            if records.starts[one[0]] + one[1] >= records.starts[one[0] + 1]:
                one[:] = [next(queue), 0]


@pytest.mark.parametrize("admitted", [0, 2, K])
def test_requests_move_by_what_is_accepted_and_the_bonus_token(made_up, admitted):
    records, order = made_up(length=11), [4, 1, 7]
    cursors = Cursors(records, np.array(order), 5)
    expected = walked(records, order, 5, admitted)
    for _ in range(60):
        assert cursors.advance(np.full(5, admitted)).tolist() == next(expected)


def test_a_request_that_stays_wraps_inside_its_sequence(made_up):
    records = made_up(length=7)
    cursors = Cursors(records, np.array([3, 2]), 3, stay=True)
    at = 0
    for _ in range(50):
        batch = cursors.batch()
        assert batch.sequences.tolist() == [3, 2, 3]
        assert batch.kv_lengths[0] == records.contexts[3] + at
        at = (at + int(cursors.advance(np.full(3, K))[0]) + 1) % 7
        assert not cursors.generation.any()


def test_a_new_request_of_a_slot_is_another_generation(made_up):
    records = made_up(length=4)
    cursors = Cursors(records, np.arange(records.sequences), 2)
    seen = [(cursors.batch().generations[0], cursors.batch().sequences[0])]
    for _ in range(12):
        cursors.advance(np.zeros(2, np.int64))
        seen.append((cursors.batch().generations[0], cursors.batch().sequences[0]))
    assert sorted(set(seen)) == [(0, 0), (1, 2), (2, 4), (3, 6)]


def test_a_batch_does_not_move_with_the_requests(made_up):
    cursors = Cursors(made_up(), np.arange(4), 4)
    batch = cursors.batch(context=1000)
    before = batch.kv_lengths.copy(), batch.accepted.copy()
    cursors.advance(np.full(4, K))
    np.testing.assert_array_equal(batch.kv_lengths, before[0])
    np.testing.assert_array_equal(batch.accepted, before[1])
    assert batch.kv_lengths.tolist() == [1000] * 4


@pytest.mark.parametrize(("order", "requests"), [([], 1), ([0], 0), ([24], 1), ([-1], 1)])
def test_nothing_to_walk_over_is_refused(made_up, order, requests):
    with pytest.raises(LayoutError, match="walk"):
        Cursors(made_up(), np.array(order, np.int64), requests)


def test_the_oracle_is_as_good_as_the_best_of_all_choices():
    """Against every vector of admitted drafts, on random staircases."""
    random = np.random.default_rng(3)
    for _ in range(60):
        requests, width = int(random.integers(1, 4)), 3
        accepted = random.integers(0, width + 1, requests)
        price = np.cumsum(random.choice([0.0, 0.0, 0.3, 1.5], requests * (width + 1) + 1)) + 1.0
        found = best_admitted(accepted, lambda tokens, price=price: price[tokens])
        rates = [
            (requests + np.minimum(choice, accepted).sum()) / price[requests + sum(choice)]
            for choice in product(range(width + 1), repeat=requests)
        ]
        assert (found <= accepted).all()
        rate = (requests + found.sum()) / price[requests + found.sum()]
        assert rate == pytest.approx(max(rates))


def test_a_budget_is_spread_over_first_positions_first():
    accepted = np.array([3, 0, 1, 5])
    assert [spread(accepted, budget).tolist() for budget in (0, 1, 2, 3, 5, 9)] == [
        [0, 0, 0, 0],
        [1, 0, 0, 0],
        [1, 0, 1, 0],
        [1, 0, 1, 1],
        [2, 0, 1, 2],
        [3, 0, 1, 5],
    ]


def test_the_arms_are_named_by_k():
    assert arm_names(2) == ("none", "fixed-1", "fixed-2", "adaptive", "oracle")


@pytest.fixture
def scene(made_up, priced):
    def make(requests=8, **changes):
        parts = {"records": made_up(), "table": priced(), "warmup": 64, "tiers": TIERS}
        return Scene(requests=requests, **{**parts, **changes})

    return make


def test_fixed_arms_are_the_walk_and_the_table(scene, priced):
    """Tokens and seconds of fixed-k and none, worked out without simulator or manager."""
    one = scene(context=64)
    order = np.random.default_rng(0).permutation(one.records.sequences).tolist()
    for arm, count in (("none", 0), ("fixed-2", 2), (f"fixed-{K}", K)):
        found = simulate(one, [arm])[arm]
        steps = walked(one.records, order, 8, count)
        for _ in range(one.warmup):
            next(steps)
        emitted = [8 + sum(next(steps)) for _ in range(found.steps)]
        assert found.tokens == sum(emitted)
        assert found.tokens >= one.records.positions > found.tokens - emitted[-1] or found.steps == 256
        executed = next(tier for tier in TIERS if tier >= 8 * (1 + count))
        step = 1e-3 + 2e-4 * executed + (2e-4 if count else 0.0)
        assert found.seconds == pytest.approx(found.steps * step)
        assert (found.drafted, found.verified) == (8 * count * found.steps, 8 * count * found.steps)
        assert found.accepted == found.tokens - 8 * found.steps
        assert found.executed == executed * found.steps
        assert not found.counters


def test_adaptive_is_between_the_fixed_arms_and_the_oracle(scene, priced):
    """Where drafts cost and scores tell good from bad."""
    arms = ("none", "fixed-2", "fixed-3", f"fixed-{K}", "adaptive", "oracle")
    found = simulate(scene(tiers=(), table=priced(slope=1e-4, fixed=4e-3)), arms)
    rates = {name: one.tokens_per_second for name, one in found.items()}
    others = {name: rate for name, rate in rates.items() if name not in ("adaptive", "oracle")}
    assert rates["oracle"] > rates["adaptive"] > max(others.values())
    adaptive = found["adaptive"]
    assert adaptive.states["trimming"] > adaptive.steps / 2
    assert 0 < adaptive.verified < adaptive.drafted
    assert adaptive.wasted_share < found[f"fixed-{K}"].wasted_share
    assert found["oracle"].wasted == 0
    assert not adaptive.counters


@pytest.mark.parametrize("lag", [0, 1, 2, 5])
def test_budgets_read_confidences_of_the_lag_that_was_asked_for(scene, lag):
    found = simulate(scene(), ["adaptive"], Planning(lag=lag))["adaptive"]
    assert found.mean_lag == lag


def test_a_table_that_tells_nothing_apart_verifies_everything(scene, priced):
    """Unpriced: the tokens are those of fixed-K, step for step, where nothing is tried."""
    planning = Planning(options=ManagerOptions(online=False))
    found = simulate(scene(table=priced(slope=0.0)), ["adaptive", f"fixed-{K}"], planning)
    adaptive, fixed = found["adaptive"], found[f"fixed-{K}"]
    assert set(adaptive.states) == {"unpriced"}
    assert (adaptive.tokens, adaptive.seconds) == (fixed.tokens, fixed.seconds)


def test_nothing_is_drafted_where_drafting_does_not_pay(scene, priced):
    """The manager is asked before each step, as an engine asks it; probes aside, adaptive is then none."""
    dear = scene(table=priced(draft=0.1))
    found = simulate(dear, ["adaptive", "none", f"fixed-{K}"])
    adaptive, none, fixed = found.values()
    assert adaptive.drafted < fixed.drafted / 10
    assert none.tokens_per_second >= adaptive.tokens_per_second > 0.9 * none.tokens_per_second


def test_captured_steps_that_draft_nothing_have_their_own_price(scene, priced):
    """Drafting is inside the other graphs, so the table does not price it apart: none must not pay for it."""
    sizes = (4, 8, 16)
    bare = [(count, count, context, 4e-4) for count in sizes for context in (16, 128)]
    table = priced(bare=bare, draft_parts=())
    one = scene(table=table, bare=sizes, requests=6)
    none, fixed = simulate(one, ["none", f"fixed-{K}"]).values()
    assert none.step_seconds == pytest.approx(4e-4)
    assert none.executed == 8 * none.steps, "six requests run in the captured step of eight"
    assert fixed.step_seconds == pytest.approx(1e-3 + 2e-4 * 48)
    without = simulate(scene(table=table, requests=6), ["none"])["none"]
    assert without.step_seconds == pytest.approx(1e-3 + 2e-4 * 8)


def test_adaptive_drafts_nothing_where_the_captured_step_without_drafts_wins(scene, priced):
    """The manager of a simulation knows of those steps as the one that serves does."""
    bare = [(count, count, context, 1e-5) for count in (4, 8, 16) for context in (16, 128)]
    one = scene(table=priced(bare=bare, draft_parts=()), bare=(4, 8, 16))
    adaptive, none = simulate(one, ["adaptive", "none"]).values()
    assert adaptive.drafted < 0.1 * adaptive.steps * 8 * K
    assert adaptive.tokens_per_second > 0.5 * none.tokens_per_second


def test_rejected_drafts_take_their_time(scene, priced):
    plain, dear = (
        simulate(scene(table=priced(rejected_seconds=extra)), ["fixed-3"])["fixed-3"] for extra in (0.0, 1e-3)
    )
    assert dear.seconds == pytest.approx(plain.seconds + 1e-3 * plain.wasted)


def test_equal_scenes_give_equal_results(scene):
    one, two = (simulate(scene(), ["adaptive", "oracle"]) for _ in range(2))
    assert {name: result.as_dict() for name, result in one.items()} == {
        name: result.as_dict() for name, result in two.items()
    }
    other = simulate(scene(seed=1), ["oracle"])
    assert other["oracle"].tokens != one["oracle"].tokens


def test_signals_learn_the_regime_of_the_records(scene, made_up):
    """Sampled text is learnt as sampled, and trimmed: nothing of its law can move."""
    found = simulate(scene(records=made_up(sampled=True), tiers=()), ["adaptive"])["adaptive"]
    assert found.states["trimming"] > found.steps / 2
    assert "lossless-downgrade" not in found.counters


def test_another_signal_and_other_options_are_used(scene):
    options = ManagerOptions(warmup_steps=0, margin=10.0, explore_share=0.0)
    found = simulate(scene(), ["adaptive"], Planning(signal=DRAFTER, options=options))["adaptive"]
    assert found.verified == found.drafted, "nothing is ten times better"


def test_what_is_no_scene_is_refused(scene):
    for name, value in {"requests": 0, "warmup": -1, "tokens": 0, "context": 0, "seed": True}.items():
        with pytest.raises(RecordsError, match=name):
            scene(**{name: value})
    for tiers in ((8, 10**30), (0, 8), (8, 8), [8], (8.0,)):
        with pytest.raises(RecordsError, match="no ladder"):
            scene(tiers=tiers)
    with pytest.raises(CostTableError, match="step times"):
        scene(table=None)
    with pytest.raises(DescriptorError, match="arm"):
        simulate(scene(), [f"fixed-{K + 1}"])
    with pytest.raises(DescriptorError, match="lag"):
        Planning(lag=-1)
    with pytest.raises(CalibrationError):
        simulate(scene(), ["adaptive"], Planning(calibration={"signal": "calibrated"}))


def test_the_relay_shows_nothing_that_is_under_way():
    relay = LaggedRelay(Limits(2, 3, 64, 16), lag=2)
    slots, generations = np.arange(2), np.zeros(2, np.int64)
    found = []
    for step in range(6):
        relay.publish(step, slots, generations, torch.full((2, 3), step / 8))
        latest = relay.latest(at_most=step)
        found.append(None if latest is None else (latest.step, float(latest.confidences[0, 0])))
    assert found == [None, None, (0, 0.0), (1, 1 / 8), (2, 2 / 8), (3, 3 / 8)]
    assert relay.latest(at_most=2).step == 2
    assert relay.dropped == 0
