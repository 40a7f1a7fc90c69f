"""Signals and policies that raise or answer nonsense: the step verifies everything, the fault has a name."""

import asyncio
import dataclasses
import sys

import numpy as np
import pytest
import torch

from adaverify_contracts import BudgetReads, PlanState, PolicyDescriptor, Seen, SignalDescriptor
from adaverify_verification import DRAFTER, RatioPolicy
from adaverify_verification.signals.drafter import DrafterSignal

HALF = np.tile([0.9, 0.5, 0.3, 0.1, 0.1, 0.1, 0.1], (4, 1))
NAN = float("nan")


def steep(n):
    return 1.0 + 0.2 * n


def fail(*_):
    raise RuntimeError("not today")


def policy_of(**methods):
    made = type("Odd", (RatioPolicy,), {name: staticmethod(method) for name, method in methods.items()})
    return PolicyDescriptor("odd", BudgetReads.HISTORY, made)


def signal_of(**methods):
    made = type("Odd", (DrafterSignal,), methods)
    return SignalDescriptor("odd", Seen.HISTORY, True, made)


def expect_everything(build, counter, words, steps=3, **plugins):
    loop = build.loop(build.manager(build.table(steep, (4,), 64), **plugins), steep)
    for _ in range(steps):
        plan = loop.serve(HALF)
        assert (plan.state, plan.budget, plan.uniform_query_len) == (PlanState.FULL, 28, 8)
        assert "everything is verified" in plan.reason
        assert words in plan.reason
    assert loop.manager.counters[counter] == steps
    assert counter in loop.records[-1].fallbacks
    assert loop.records[-1].verified == 28


@pytest.mark.parametrize("method", ["choose", "gains"])
def test_a_policy_that_raises_verifies_everything(build, method):
    """A plugin's failure costs trimming, never the step (the policy side of vllm #48277)."""
    expect_everything(build, "policy-raised", "RuntimeError: not today", policy=policy_of(**{method: fail}))


class Liar:
    """Claims to be an index and fails as one."""

    def __repr__(self):
        return "liar"

    def __index__(self):
        raise ValueError("no index")


@pytest.mark.parametrize(
    "answer",
    [
        *(-1, 29, 10**9, 10**30, None, NAN, 2.5, 3.0, "3", [1], np.array([1, 2])),
        *(True, False, np.True_, np.array(3), np.float64(3), torch.tensor(3), torch.tensor(True), Liar()),
    ],
    ids=repr,
)
def test_a_choice_that_is_no_candidate_verifies_everything(build, answer):
    """One past the end, one before the start (Python would count from the back), NaN, another type.

    True is 1 to an index, and a tensor would have to be waited for.
    """
    expect_everything(build, "policy-nonsense", "of 29 candidates", policy=policy_of(choose=lambda _: answer))


@pytest.mark.parametrize(
    "answer", [None, 1.0, np.zeros(3), np.full(29, NAN), np.full(29, np.inf), ["a"] * 29]
)
def test_gains_that_are_no_numbers_verify_everything(build, answer):
    """The guard compares with gains: NaN compares false with any margin and would pass it."""
    loop = build.loop(
        build.manager(build.table(steep, (4,), 64), policy=policy_of(gains=lambda _: answer)), steep
    )
    plan = loop.serve(HALF)
    assert (plan.state, plan.budget) == (PlanState.FULL, 28)
    assert {"policy-raised", "policy-nonsense"} & set(loop.manager.counters)


def test_a_policy_that_writes_into_its_candidates_is_stopped(build):
    """The candidates are the planner's own arrays: a write would change the plan behind its back."""

    def vandal(candidates):
        candidates.budgets[:] = 0
        return 0

    expect_everything(build, "policy-raised", "read-only", policy=policy_of(choose=vandal))


def test_numpy_indices_and_the_ends_are_ordinary_choices(build):
    """0, the last, and a NumPy integer."""
    for answer in (0, 28, np.int64(3), np.uint8(3)):
        policy = policy_of(choose=lambda _, answer=answer: answer)
        loop = build.loop(build.manager(build.table(steep, (4,), 64), policy=policy), steep)
        loop.serve(HALF)
        assert not loop.manager.counters


def test_a_signal_that_raises_verifies_everything(build):
    """On the decode path, when it is asked whether it is ready, and for each step anew."""
    for methods in ({"confidences": fail}, {"ready": fail}):
        expect_everything(build, "signal-raised", "RuntimeError: not today", signal=signal_of(**methods))


def test_a_signal_that_recovers_is_used_again(build):
    """One bad step is one counted step; nothing of it is published or ranked by."""
    failing = []

    def sometimes(self, scores, slots):
        if failing:
            raise RuntimeError("not today")
        return DrafterSignal.confidences(self, scores, slots)

    loop = build.loop(
        build.manager(build.table(steep, (4,), 64), signal=signal_of(confidences=sometimes)), steep
    )
    kinds = []
    for fails in (False, True, False):
        failing[:] = [1] if fails else []
        kinds.append(loop.serve(HALF).state)
    assert kinds == [PlanState.TRIMMING, PlanState.FULL, PlanState.TRIMMING]
    assert loop.plans[2].lag == 0
    assert dict(loop.manager.counters) == {"signal-raised": 1}


def test_a_signal_that_cannot_learn_or_forget_loses_that_and_nothing_else(build):
    """Off the decode path it is counted in the record; a recycled slot it cannot forget is not trusted."""
    loop = build.loop(build.manager(build.table(steep, (4,), 64), signal=signal_of(learn=fail)), steep)
    plan = loop.serve(HALF)
    assert plan.state is PlanState.TRIMMING
    assert loop.records[0].fallbacks == ("signal-raised",)
    loop = build.loop(build.manager(build.table(steep, (4,), 64), signal=signal_of(forget=fail)), steep)
    assert loop.serve(HALF).state is PlanState.TRIMMING
    recycled = loop.serve(HALF, generations=np.array([0, 1, 0, 0]))
    assert (recycled.state, recycled.budget) == (PlanState.FULL, 28)
    assert loop.serve(HALF, generations=np.array([0, 1, 0, 0])).state is PlanState.TRIMMING


@pytest.mark.parametrize(
    "answer",
    [None, 0.5, torch.zeros(7), torch.zeros(1, 7), torch.zeros(4, 6), torch.zeros(8, 7), np.zeros((4, 6))],
)
def test_confidences_of_another_shape_verify_everything(build, answer):
    """One row must not be broadcast over all requests (vllm #52242: values of the wrong request)."""
    expect_everything(
        build, "signal-nonsense", "another shape", signal=signal_of(confidences=lambda *_: answer)
    )


@pytest.mark.parametrize("answer", [np.zeros((4, 7), np.float32), torch.zeros((4, 7), dtype=torch.float64)])
def test_confidences_of_another_kind_verify_everything(build, answer):
    """The right shape is not enough: an array is no tensor, and a wider dtype would be narrowed unseen."""
    expect_everything(build, "signal-nonsense", "returned", signal=signal_of(confidences=lambda *_: answer))


def test_a_policy_that_exits_verifies_everything(build):
    """``sys.exit`` in a plugin is a failure of the plugin and does not end the engine."""
    expect_everything(build, "policy-raised", "SystemExit", policy=policy_of(choose=lambda _: sys.exit(5)))


@pytest.mark.parametrize("answer", [None, True, (1,), ("yes", "why"), (NAN, "why")])
def test_readiness_that_is_no_answer_verifies_everything(build, answer):
    """A truthy string is not ready."""
    expect_everything(build, "signal-nonsense", "readiness", signal=signal_of(ready=lambda _: answer))


@pytest.mark.parametrize("mode", ["none", "fixed", "adaptive"])
@pytest.mark.parametrize(
    ("answer", "counter"),
    [
        (fail, "signal-raised"),
        (lambda *_: None, "signal-nonsense"),
        (lambda *_: np.zeros((4, 7), np.float32), "signal-nonsense"),
        (lambda *_: torch.zeros(7), "signal-nonsense"),
        (lambda *_: torch.zeros((4, 7), dtype=torch.int32), "signal-nonsense"),
    ],
)
def test_confidences_that_fail_are_counted_without_prices_and_in_every_mode(build, answer, counter, mode):
    """Only ``unpriced`` was counted, so that nobody saw that the signal had failed."""
    loop = build.loop(build.manager(None, signal=signal_of(confidences=answer), mode=mode), steep)
    for _ in range(3):
        plan = loop.serve(HALF)
    assert loop.manager.counters[counter] == 3
    assert counter in loop.records[-1].fallbacks
    assert loop.manager.counters.get("unpriced", 0) == (3 if mode == "adaptive" else 0)
    if mode == "adaptive":
        assert (plan.state, plan.budget) == (PlanState.FULL, 28)
        assert "everything is verified" in plan.reason


@pytest.mark.parametrize(
    ("answer", "counter"), [(fail, "signal-raised"), (lambda _: None, "signal-nonsense")]
)
def test_readiness_that_fails_is_counted_without_prices(build, answer, counter):
    loop = build.loop(build.manager(None, signal=signal_of(ready=answer)), steep)
    for _ in range(3):
        plan = loop.serve(HALF)
    assert loop.manager.counters == {counter: 3, "unpriced": 3}
    assert plan.state is PlanState.FULL


@pytest.mark.parametrize("value", [NAN, float("inf"), float("-inf")])
@pytest.mark.parametrize("where", ["one", "all"])
def test_confidences_that_are_no_numbers_verify_everything(build, value, where):
    """vllm #54011: end to end, from a signal to the executed assignment; no NaN in any number of the plan."""

    def broken(self, scores, slots):
        out = DrafterSignal.confidences(self, scores, slots)
        out[0 if where == "one" else slice(None), 0] = value
        return out

    loop = build.loop(
        build.manager(build.table(steep, (4,), 64), signal=signal_of(confidences=broken)), steep
    )
    plan = loop.serve(HALF)
    assert (plan.state, plan.budget) == (PlanState.FULL, 28)
    assert loop.records[0].verified == 28
    assert loop.records[0].fallbacks == ("invalid-confidences",)
    numbers = [v for v in dataclasses.asdict(plan).values() if isinstance(v, float)]
    assert numbers
    assert np.isfinite(numbers).all()


def test_scores_that_are_no_numbers_are_named_in_the_record(build):
    """A drafter's NaN counts as confidence 0 on the device; the host names it when the scores arrive."""
    odd = HALF.copy()
    odd[1, 0] = NAN
    loop = build.loop(build.manager(build.table(steep, (4,), 64), signal=DRAFTER), steep)
    plan = loop.serve(odd, truth=HALF)
    assert plan.state is PlanState.TRIMMING
    assert np.isfinite(plan.predicted_tokens)
    assert loop.records[0].fallbacks == ("invalid-scores",)
    assert loop.manager.counters["invalid-scores"] == 1


class Mute(BaseException):
    def __str__(self):
        raise ValueError("no words")


class Silent:
    """No choice, and not even to be shown."""

    def __repr__(self):
        raise ValueError("no words")


@pytest.mark.parametrize("error", [Mute, asyncio.CancelledError, GeneratorExit])
def test_a_policy_that_raises_no_ordinary_exception_verifies_everything(build, error):
    """Such exceptions passed every ``except Exception``, and a text that raises spoilt the words for it."""

    def choose(_):
        raise error

    expect_everything(build, "policy-raised", error.__name__, policy=policy_of(choose=choose))


def test_an_answer_that_cannot_be_shown_verifies_everything(build):
    expect_everything(build, "policy-nonsense", "Silent", policy=policy_of(choose=lambda _: Silent()))
