"""Wrong types and nonsense numbers: typed errors that say what to do, at every entry of the package."""

import inspect

import numpy as np
import pytest
import torch

from adaverify_contracts import (
    AdaverifyError,
    CostTableError,
    DescriptorError,
    LayoutError,
    Limits,
    PlanError,
    Seen,
    StepOutcome,
    StepState,
)
from adaverify_verification import (
    DRAFTER,
    CostModel,
    CostTable,
    Fingerprint,
    ManagerOptions,
    VerificationManager,
)

HERE = Fingerprint.from_mapping({"device": "cpu"})
POINTS = [(1, 1, 0, 1.0), (8, 1, 0, 2.0)]
NAN = float("nan")


def refused(error, call):
    """Return the error of ``call``, which must say what was allowed and what to do."""
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, AdaverifyError)
    assert caught.value.allowed
    assert caught.value.remedy
    return caught.value


@pytest.fixture
def make(build):
    """Return a maker of managers with some arguments replaced."""
    from adaverify_contracts import BudgetReads, PolicyDescriptor
    from adaverify_verification import RatioPolicy

    def made(**changes):
        arguments = {
            "limits": Limits(max_requests=4, draft_tokens=7, max_model_len=64, page_size=16),
            "device": "cpu",
            "signal": DRAFTER,
            "policy": PolicyDescriptor("ratio", BudgetReads.HISTORY, RatioPolicy),
            "cost": CostModel(CostTable.from_points(HERE, POINTS)),
            "tiers": (),
            "options": ManagerOptions(),
            "drafter_seen": Seen.PREFIX,
            "drafter_deterministic": True,
            **changes,
        }
        return VerificationManager(arguments.pop("limits"), arguments.pop("device"), **arguments)

    return made


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, None) for name in ("limits", "signal", "policy", "cost", "options", "drafter_seen")),
        ("cost", CostTable.from_points(HERE, POINTS)),
        ("limits", "4"),
        ("signal", "drafter"),
        ("policy", "ratio"),
        ("options", {}),
        ("drafter_seen", "PREFIX"),
        *(("drafter_deterministic", value) for value in (3, None, "no", 1)),
        ("relay", "cpu"),
        ("assign_backend", "numpy"),
    ],
)
def test_a_part_of_the_wrong_type_is_refused_by_name(make, name, value):
    """They ended in AttributeError, at the first step or in the constructor; 3 counted as yes."""
    assert name in refused(DescriptorError, lambda: make(**{name: value})).problem


@pytest.mark.parametrize(
    "tiers", [None, 4, "48", [1.5, 2.5], ["8"], (True, 8), [NAN], (8, 4), (0, 4), [2**40]]
)
def test_tiers_of_the_wrong_type_are_refused(make, tiers):
    """``int`` made 1 of 1.5 and 4, 8 of the word 48."""
    refused(PlanError, lambda: make(tiers=tiers))
    assert make(tiers=np.array([4, 8])).cost.priced


@pytest.mark.parametrize("step", [-1, 2**63, 2**70, True, 1.0, None, "3"])
def test_a_step_number_is_a_count_of_64_bits(make, step):
    """Negative ones were published, and 2**63 overflowed in the digest."""
    manager = make()
    slots, generations = np.arange(2), np.zeros(2, np.int64)
    refused(LayoutError, lambda: manager.publish(step, slots, generations, torch.zeros(2, 7)))
    refused(LayoutError, lambda: manager.begin_publish(step, slots, generations))
    refused(PlanError, lambda: manager.note(step, "mine"))
    refused(PlanError, lambda: StepState(step, slots, generations, np.full(2, 7), 2))
    assert dict(manager.counters) == {}


@pytest.mark.parametrize("value", [10**25, 2**63])
def test_numbers_that_no_digest_holds_are_refused(build, value):
    """``kv_tokens=10**25`` was an OverflowError inside ``plan``."""
    refused(PlanError, lambda: build.state(0, 2, kv_tokens=value))
    refused(PlanError, lambda: build.state(0, 2, other_tokens=value))
    largest = build.state(2**63 - 1, 2, kv_tokens=2**63 - 1)
    assert build.manager(build.table(lambda n: 1 + n, (2,), 16)).plan(largest).step == 2**63 - 1


@pytest.mark.parametrize("sampled", ["no", 0, None, 3])
def test_sampled_is_a_bool(build, sampled):
    """The word ``no`` is true."""
    refused(PlanError, lambda: build.state(0, 2, sampled=sampled))
    assert build.state(0, 2, sampled=np.bool_(True)).sampled


def outcome_of(state, emitted):
    rows = state.requests
    zeros, false = np.zeros(rows, np.int64), np.zeros(rows, bool)
    scores = np.zeros((rows, 7), np.float32)
    return StepOutcome(
        state.step,
        state.slots,
        state.generations,
        state.scheduled,
        zeros,
        zeros,
        scores,
        false,
        false,
        emitted,
        0.1,
    )


def test_more_emitted_than_any_batch_can_is_refused_and_more_than_this_one_teaches_nothing(build):
    """10**9 tokens of two requests were an ordinary outcome of a step that nobody planned."""
    state = build.state(0, 2)
    refused(PlanError, lambda: outcome_of(state, 10**9))
    manager = build.manager(build.table(lambda n: 1 + n, (2,), 16))
    record = manager.observe(outcome_of(state, 1000), manager.plan(state), "x")
    assert "emitted-not-verified" in record.fallbacks


@pytest.mark.parametrize("name", ["", "  ", None, 3])
def test_a_fallback_has_a_name(make, name):
    """A counter without one says nothing."""
    manager = make()
    refused(PlanError, lambda: manager.note(1, name))
    assert dict(manager.counters) == {}


def test_plans_of_the_wrong_type_are_refused(make, build):
    """``agree(None)``, ``apply(None)``, ``export(None)``, ``observe(None, None)``, ``assign(None)``."""
    manager, state = make(), build.state(0, 2)
    plan = manager.plan(state)
    integers = manager.export(plan)
    counts = torch.full((2,), 7, dtype=torch.int32)
    for call in (
        lambda: manager.plan(None),
        lambda: manager.export(None),
        lambda: manager.apply(None, integers),
        lambda: manager.apply(state, None),
        lambda: manager.apply(state, "123456789"),
        lambda: manager.apply(state, [NAN] * 9),
        lambda: manager.apply(state, [*integers[:7], 10**30, integers[8]]),
        lambda: manager.agree(None, plan, [1]),
        lambda: manager.agree(state, None, [1]),
        lambda: manager.agree(state, plan, None),
        lambda: manager.agree(state, plan, ["1"]),
        lambda: manager.observe(None, None, "x"),
        lambda: manager.assign(None, counts, counts, 2),
        lambda: manager.draft_next(None, 3),
        lambda: manager.draft_next(2, -1),
        lambda: manager.draft_next(99, 3),
    ):
        refused(PlanError, call)
    assert manager.agree(state, plan, np.array([plan.digest], dtype=np.uint64)) is plan


@pytest.mark.parametrize(
    ("fingerprint", "points", "more"),
    [
        (HERE, None, {}),
        (HERE, 3, {}),
        (HERE, "1234", {}),
        (HERE, [3], {}),
        (HERE, ["1234"], {}),
        (HERE, [None], {}),
        ("x", POINTS, {}),
        (None, POINTS, {}),
        ({"device": "cpu"}, POINTS, {}),
        (HERE, POINTS, {"draft": None}),
        (HERE, POINTS, {"draft": [3]}),
        (HERE, POINTS, {"draft": [(1.5, 2.0)]}),
        (HERE, POINTS, {"draft": [(1, NAN)]}),
    ],
)
def test_points_and_fingerprints_of_the_wrong_type_are_refused(fingerprint, points, more):
    """They were TypeErrors, or kept until ``save``."""
    refused(CostTableError, lambda: CostTable.from_points(fingerprint, points, **more))


@pytest.mark.parametrize("table", ["table.json", {}, 3, HERE])
def test_a_cost_model_of_the_wrong_table_is_refused(table):
    """None is the only other thing than a table."""
    refused(CostTableError, lambda: CostModel(table))


def test_every_part_of_the_manager_is_checked():
    """A new part needs a check of its own."""
    from adaverify_verification import parts

    named = set(inspect.signature(VerificationManager).parameters)
    assert named - {"device", "tiers", "assign_backend"} == set(parts._KINDS)
