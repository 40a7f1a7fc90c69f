"""What is published is checked before anything is written; odd confidences are counted on the host."""

import time

import numpy as np
import pytest
import torch

from adaverify_contracts import LayoutError, PlanState, Seen

R, K = 4, 7
HALF = np.tile([0.9, 0.5, 0.3, 0.1, 0.1, 0.1, 0.1], (R, 1))


def steep(n):
    return 1.0 + 0.2 * n


@pytest.fixture
def manager(build):
    return build.manager(build.table(steep, (1, R), 64), requests=R, deterministic=True)


def publish(manager, build, step=0, **changed):
    values = {
        "slots": np.arange(R),
        "generations": np.zeros(R, np.int64),
        "scores": build.logits(HALF),
        **changed,
    }
    manager.publish(step, values["slots"], values["generations"], values["scores"])


BAD = {
    "a slot twice": {"slots": np.array([0, 1, 1, 3])},
    "a negative slot": {"slots": np.array([-1, 1, 2, 3])},
    "a slot at max_requests": {"slots": np.array([0, 1, 2, R])},
    "a huge slot": {"slots": np.array([0, 1, 2, 2**62])},
    "slots as a list": {"slots": [0, 1, 2, 3]},
    "float slots": {"slots": np.arange(4.0)},
    "bool slots": {"slots": np.array([True, False, True, False])},
    "unsigned slots": {"slots": np.arange(4, dtype=np.uint64)},
    "a tensor of slots": {"slots": torch.arange(4)},
    "a column of slots": {"slots": np.arange(4)[:, None]},
    "no slots": {"slots": None},
    "too few slots": {"slots": np.arange(3)},
    "more slots than limits": {"slots": np.arange(5), "scores": torch.zeros(5, K)},
    "generations as a list": {"generations": [0, 0, 0, 0]},
    "float generations": {"generations": np.zeros(4)},
    "too few generations": {"generations": np.zeros(3, np.int64)},
    "one generation for all": {"generations": np.zeros(1, np.int64)},
    "scores of K - 1": {"scores": torch.zeros(R, K - 1)},
    "scores of K + 1": {"scores": torch.zeros(R, K + 1)},
    "flat scores": {"scores": torch.zeros(R * K)},
    "scores of one row less": {"scores": torch.zeros(R - 1, K)},
    "scores in double": {"scores": torch.zeros(R, K, dtype=torch.float64)},
    "scores in bfloat16": {"scores": torch.zeros(R, K, dtype=torch.bfloat16)},
    "integer scores": {"scores": torch.zeros(R, K, dtype=torch.int32)},
    "scores on another device": {"scores": torch.zeros(R, K, device="meta")},
    "scores in NumPy": {"scores": np.zeros((R, K), np.float32)},
    "no scores": {"scores": None},
    "no step": {"step": None},
    "half a step": {"step": 0.5},
    "a flag for a step": {"step": True},
}


@pytest.mark.parametrize("name", BAD)
def test_a_publication_that_does_not_fit_is_refused_and_changes_nothing(manager, build, name):
    """Duplicate, negative and float slots ended in an IndexError, or in another request's confidences."""
    publish(manager, build)
    before = {key: value.clone() for key, value in vars(manager._live).items() if torch.is_tensor(value)}
    with pytest.raises(LayoutError) as caught:
        publish(manager, build, **BAD[name])
    assert caught.value.arrived is not None or name.startswith("no ")
    assert caught.value.allowed
    assert caught.value.remedy
    for key, value in before.items():
        assert torch.equal(getattr(manager._live, key), value)
    plan = manager.plan(build.state(0, R))
    assert (plan.lag, plan.state) == (0, PlanState.TRIMMING)
    lens = torch.full((R,), K, dtype=torch.int32)
    manager.assign(plan, lens, lens, plan.tokens)
    assert not manager.counters


def test_slots_that_were_refused_once_are_refused_again(manager, build):
    """Only slots that passed are remembered."""
    for _ in range(3):
        with pytest.raises(LayoutError, match="published twice"):
            publish(manager, build, slots=np.array([0, 1, 1, 3]))


def test_any_order_of_the_slots_and_none_at_all_are_ordinary(manager, build):
    """A permutation, the same again, an int32 array, R = 1, R = 0, and back."""
    for step, slots in enumerate(([3, 0, 2, 1], [3, 0, 2, 1], [2], [], [0, 1, 2, 3])):
        rows = len(slots)
        for dtype in (np.int64, np.int32):
            publish(
                manager,
                build,
                step,
                slots=np.array(slots, dtype),
                generations=np.zeros(rows, dtype),
                scores=build.logits(HALF[:rows]),
            )
        manager.plan(
            build.state(step, rows, slots=np.array(slots, np.int64), generations=np.zeros(rows, np.int64))
        )
    assert not manager.counters


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (1.0 + 1e-6, "clamped-confidences"),
        (-1e-6, "clamped-confidences"),
        (1e30, "clamped-confidences"),
        (float("nan"), "invalid-confidences"),
        (float("inf"), "invalid-confidences"),
        (float("-inf"), "invalid-confidences"),
        (0.0, None),
        (-0.0, None),
        (1.0, None),
    ],
)
def test_confidences_outside_0_to_1_are_counted_by_name(build, value, name):
    """They were clamped without a word: the neighbours of both ends, huge values, and what is no number."""
    manager = build.manager(build.table(steep, (1, R), 64), requests=R, seen=Seen.HISTORY)
    odd = torch.from_numpy(HALF.astype(np.float32))
    odd[1, 2] = value
    manager._relay.publish(0, np.arange(R), np.zeros(R, np.int64), odd)
    plan = manager.plan(build.state(0, R))
    assert dict(manager.counters) == ({} if name is None else {name: 1})
    # Clamped values still plan; what is no number verifies everything.
    assert plan.budget == 28 if name == "invalid-confidences" else plan.budget < 28
    assert np.isfinite(plan.full_tokens)


def test_a_nan_beside_a_value_to_clamp_is_invalid_and_not_clamped(build):
    """The graver name wins, whatever else is in the batch."""
    manager = build.manager(build.table(steep, (1, R), 64), requests=R, seen=Seen.HISTORY)
    odd = torch.from_numpy(HALF.astype(np.float32))
    odd[0, 0], odd[3, 6] = 5.0, float("nan")
    manager._relay.publish(0, np.arange(R), np.zeros(R, np.int64), odd)
    manager.plan(build.state(0, R))
    assert dict(manager.counters) == {"invalid-confidences": 1}


def test_the_checks_of_a_publication_take_microseconds(build):
    """The decode path pays for them: 256 requests whose slots do not change, best of many."""
    manager = build.manager(build.table(steep, (1,), 64), requests=256)
    intake, scores = manager._live._intake, torch.zeros(256, K)
    slots, generations = np.arange(256), np.zeros(256, np.int64)
    best = float("inf")
    for step in range(300):
        start = time.perf_counter()
        intake.check(step, slots, generations, scores)
        best = min(best, time.perf_counter() - start)
    # 2 us on a quiet core; the bound leaves room for a shared one.
    assert best < 10e-6
