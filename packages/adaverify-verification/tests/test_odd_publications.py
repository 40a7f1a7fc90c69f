"""Scores that are no numbers and publications of some slots only: defined, and counted by name."""

import numpy as np
import pytest
import torch

from adaverify_contracts import StepOutcome
from adaverify_verification import CALIBRATED, DRAFTER, TEMPERATURE_SCALED

R, K = 4, 7
HALF = np.tile([0.9, 0.5, 0.3, 0.1, 0.1, 0.1, 0.1], (R, 1))


def steep(n):
    return 1.0 + 0.2 * n


def serve(manager, build, slots, scores, observed=None):
    """Publish ``scores`` of ``slots``, trim and execute a step of R requests; return admitted and record."""
    manager.publish(0, np.array(slots), np.zeros(len(slots), np.int64), scores)
    state = build.state(0, R)
    plan = manager.plan(state)
    assert 0 < plan.budget < plan.scheduled
    lens = torch.full((R,), K, dtype=torch.int32)
    admitted = manager.assign(plan, lens, lens, plan.tokens).admitted.numpy().astype(np.int64)
    nothing = np.zeros(R, np.int64)
    outcome = StepOutcome(
        step=0,
        slots=state.slots,
        generations=state.generations,
        drafted=np.asarray(state.scheduled),
        admitted=admitted,
        accepted=nothing,
        scores=np.zeros((R, K), np.float32) if observed is None else observed,
        learn=np.ones(R, dtype=bool),
        sampled=nothing.astype(bool),
        emitted=R,
        seconds=1.0,
    )
    return admitted, manager.observe(outcome, plan, "reference")


@pytest.fixture
def manager(build):
    def made(signal=DRAFTER):
        return build.manager(build.table(steep, (1, R), 64), requests=R, signal=signal, deterministic=True)

    return made


@pytest.mark.parametrize("signal", [DRAFTER, CALIBRATED, TEMPERATURE_SCALED], ids=lambda one: one.name)
def test_a_score_that_is_no_number_has_the_confidence_0(manager, build, signal):
    """The relay carries no NaN, whatever fit the signal has."""
    odd = build.logits(HALF)
    odd[1, 0], odd[2, 3] = float("nan"), float("nan")
    made = manager(signal)
    made.publish(0, np.arange(R), np.zeros(R, np.int64), odd)
    kept = made._relay.latest().confidences
    assert np.isfinite(kept).all()
    assert (kept[1, 0], kept[2, 3]) == (0.0, 0.0)
    assert not made.counters


def test_such_a_draft_ranks_last_and_is_counted_when_its_outcome_arrives(manager, build):
    """Nothing is read when it is published; the scores of the outcome are on the host."""
    odd = build.logits(HALF)
    odd[1, 0] = float("nan")
    made = manager()
    admitted, record = serve(made, build, range(R), odd, observed=odd.numpy())
    assert admitted[1] == 0
    assert admitted[[0, 2, 3]].min() > 0
    assert dict(made.counters) == {"invalid-scores": 1}
    assert record.fallbacks == ("invalid-scores",)


@pytest.mark.parametrize("slots", [[0, 3], [3, 0], [2]], ids=str)
def test_slots_may_have_gaps_and_the_rest_is_optimistic_and_counted(manager, build, slots):
    """A request that published nothing counts as sure, so it is not the one that is cut."""
    made = manager()
    admitted, record = serve(made, build, slots, build.logits(np.full((len(slots), K), 0.01)))
    others = [slot for slot in range(R) if slot not in slots]
    assert admitted[others].min() >= admitted[slots].max()
    assert dict(made.counters) == {"unranked-requests": 1}
    assert record.fallbacks == ("unranked-requests",)


def test_all_slots_in_another_order_are_no_oddity(manager, build):
    """The best request is found by its slot."""
    confidences = HALF.copy()
    confidences[0] = 0.99
    made = manager()
    admitted, record = serve(made, build, [2, 0, 3, 1], build.logits(confidences))
    assert admitted.argmax() == 2
    assert record.fallbacks == ()
