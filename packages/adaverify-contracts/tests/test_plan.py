"""Host values of a step refuse what no step can be."""

import json
from dataclasses import replace

import numpy as np
import pytest

from adaverify_contracts import (
    DraftBatch,
    LayoutError,
    Plan,
    PlanError,
    PlanState,
    RequestRows,
    Snapshot,
    StepOutcome,
    StepRecord,
    StepState,
)


def _ints(*values):
    return np.array(values, dtype=np.int64)


def _state(**changed):
    fields = {
        "step": 3,
        "slots": _ints(0, 1, 2, 3),
        "generations": _ints(0, 0, 0, 0),
        "scheduled": _ints(7, 7, 7, 7),
        "emitting": 4,
        **changed,
    }
    return StepState(**fields)


def test_counts_of_a_step():
    state = _state(other_tokens=5, emitting=5)
    assert (state.requests, state.certain_tokens, state.max_budget) == (4, 9, 28)
    assert _state(slots=_ints(), generations=_ints(), scheduled=_ints(), emitting=0).max_budget == 0


def test_the_budget_of_one_logits_chunk_of_16_and_four_requests_is_12():
    """Logits limit 16, 4 requests, K = 7: B <= 16 - 4 = 12, so that one chunk suffices (vllm #47808)."""
    assert _state(chunk_limit=16).max_budget == 12


@pytest.mark.parametrize(("limit", "budget"), [(1, 0), (3, 0), (4, 0), (5, 1), (31, 27), (32, 28), (33, 28)])
def test_the_budget_of_a_chunk_is_never_negative_nor_above_the_drafts(limit, budget):
    assert _state(chunk_limit=limit).max_budget == budget


def test_a_draft_count_from_another_k_is_refused():
    """K = 1 chosen and 7 configured gave 1 + (1 - 7) = -5 drafts: vllm #48494, #48329."""
    with pytest.raises(PlanError, match="negative draft count") as caught:
        _state(scheduled=_ints(1, 1, 1, -5))
    assert caught.value.arrived == -5
    assert "K in force" in caught.value.remedy


@pytest.mark.parametrize(
    "changed",
    [
        {"slots": _ints(0, 1)},
        {"generations": _ints(0)},
        {"scheduled": _ints()},
        {"step": -1},
        {"emitting": -1},
        {"other_tokens": -1},
        {"kv_tokens": -1},
        {"chunk_limit": 0},
        {"chunk_limit": -4},
    ],
)
def test_a_state_that_no_step_has_is_refused(changed):
    with pytest.raises(PlanError) as caught:
        _state(**changed)
    assert caught.value.allowed
    assert caught.value.remedy


def _plan(**changed):
    fields = {
        "step": 3,
        "state": PlanState.TRIMMING,
        "reason": "pays",
        "budget": 12,
        "scheduled": 28,
        "requests": 4,
        "certain_tokens": 4,
        "tokens": 16,
        "tier": 16,
        "uniform_query_len": None,
        "predicted_seconds": 0.01,
        "predicted_tokens": 9.0,
        "full_seconds": 0.02,
        "full_tokens": 10.0,
        "lag": 1,
        "digest": 7,
        **changed,
    }
    return Plan(**fields)


def test_a_plan_says_how_much_it_trims():
    assert _plan().trimmed == 16
    assert _plan(budget=0, tokens=4, tier=8).trimmed == 28
    assert _plan(budget=28, tokens=32, tier=32).trimmed == 0


@pytest.mark.parametrize(
    "changed",
    [
        {"budget": -1, "tokens": 3},
        {"budget": 29, "tokens": 33, "tier": 40},
        {"tokens": 15},
        {"tokens": 17, "tier": 32},
        {"tier": 15},
    ],
)
def test_a_plan_that_does_not_hold_its_batch_is_refused(changed):
    with pytest.raises(PlanError):
        _plan(**changed)


def test_a_snapshot_has_one_entry_a_request():
    good = {"step": 1, "slots": _ints(0, 1), "generations": _ints(0, 0), "confidences": np.ones((2, 7))}
    assert Snapshot(**good).step == 1
    for field in ("slots", "generations", "confidences"):
        with pytest.raises(PlanError, match="disagree"):
            Snapshot(**{**good, field: good[field][:1]})


def _outcome(**changed):
    fields = {
        "step": 1,
        "slots": _ints(0, 1),
        "generations": _ints(0, 0),
        "drafted": _ints(5, 5),
        "admitted": _ints(3, 0),
        "accepted": _ints(1, 0),
        "scores": np.zeros((2, 5)),
        "learn": np.array([True, True]),
        "sampled": np.array([False, True]),
        "emitted": 3,
        "seconds": None,
        **changed,
    }
    return StepOutcome(**fields)


@pytest.mark.parametrize(
    "changed",
    [
        {"accepted": _ints(4, 0)},
        {"admitted": _ints(6, 0)},
        {"accepted": _ints(-1, 0)},
        {"admitted": _ints(-1, 0), "accepted": _ints(0, 0)},
        {"learn": np.array([True])},
        {"scores": np.zeros((3, 5))},
        {"judged": _ints(6, 0)},
        {"judged": _ints(-1, 0)},
        {"judged": np.zeros(2)},
        {"keys": _ints(1)},
    ],
)
def test_an_outcome_counts_accepted_within_admitted_within_drafted(changed):
    assert _outcome().emitted == 3
    with pytest.raises(PlanError):
        _outcome(**changed)


def test_a_record_is_plain_json_and_keeps_planned_beside_verified():
    """Plan admits 2, engine verifies 7: both are reported (sglang #30204)."""
    record = StepRecord(
        step=1,
        state="trimming",
        reason="pays",
        requests=4,
        certain_tokens=4,
        scheduled=28,
        planned=2,
        verified=7,
        accepted=2,
        emitted=6,
        tokens=6,
        tier=8,
        strategy="flatten",
        predicted_seconds=0.1,
        realised_seconds=None,
        predicted_tokens=6.5,
        realised_tokens=6,
        lag=1,
        digest="0x07",
        fallbacks=("planned is not verified",),
    )
    plain = json.loads(json.dumps(record.as_dict()))
    assert (plain["planned"], plain["verified"]) == (2, 7)
    assert plain["fallbacks"] == ["planned is not verified"]
    assert plain["rows"] is None
    rows = RequestRows((7,), (2,), (2,), (1,), (2,), (True,), (False,), ((0.5, None),))
    plain = json.loads(json.dumps(replace(record, rows=rows).as_dict()))
    assert plain["rows"]["scores"] == [[0.5, None]]
    assert plain["rows"]["accepted"] == [1]


def test_drafts_have_one_width_for_all_requests():
    """Draft widths 3 and 7 in one batch: an assertion or quietly lower acceptance (strix-llama.cpp #4)."""
    torch = pytest.importorskip("torch")
    tokens, scores = torch.full((2, 7), -1), torch.zeros(2, 7)
    assert DraftBatch(tokens, _ints(3, 7), scores).probabilities is None
    for bad in (
        (tokens[:, :3], _ints(3, 7), scores),
        (tokens, _ints(3), scores),
        (tokens.flatten(), _ints(3, 7), scores.flatten()),
    ):
        with pytest.raises(LayoutError, match=r"\[R, K\]"):
            DraftBatch(*bad)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["step", "emitting", "other_tokens", "kv_tokens"])
def test_what_is_no_count_is_refused_by_name(name, value):
    """A NaN context once ended as a bare StopIteration in the cost model."""
    with pytest.raises(PlanError, match=f"{name} is no count"):
        _state(**{name: value})


@pytest.mark.parametrize("name", ["step", "emitting", "other_tokens", "kv_tokens"])
@pytest.mark.parametrize("value", [1.0, True, "1", None])
def test_what_is_no_integer_is_no_count(name, value):
    """Half a token, a flag, a word: none of them may reach the digest that ranks compare."""
    with pytest.raises(PlanError, match=f"{name} is no count"):
        _state(**{name: value})


def test_counts_of_numpy_are_counts():
    """Sums over arrays are NumPy integers, and engines pass them on."""
    assert _state(step=np.int64(3), emitting=np.int32(4), kv_tokens=np.int64(9)).kv_tokens == 9


@pytest.mark.parametrize("name", ["slots", "generations", "scheduled"])
@pytest.mark.parametrize(
    "value",
    [
        [0, 1, 2, 3],
        None,
        np.arange(4.0),
        np.ones(4, bool),
        np.arange(4, dtype=np.uint64),
        np.array(list("abcd")),
        np.zeros((4, 1), np.int64),
        np.int64(4),
    ],
)
def test_a_state_of_lists_floats_or_tables_is_refused_by_name(name, value):
    """A float slot once ended as an IndexError, and a fractional schedule was planned."""
    with pytest.raises(PlanError, match=f"StepState.{name} is not the array") as caught:
        _state(**{name: value})
    assert "signed integers" in caught.value.allowed


@pytest.mark.parametrize("make", [_state, lambda **slots: _outcome(**slots)])
def test_a_request_that_is_named_twice_is_refused(make):
    """Two rows of one slot: the second would be ranked by the first one's confidences."""
    size = 4 if make is _state else 2
    with pytest.raises(PlanError, match="names a request twice") as caught:
        make(slots=np.full(size, 3))
    assert caught.value.arrived == [3]


@pytest.mark.parametrize("make", [_state, lambda **slots: _outcome(**slots)])
def test_a_negative_slot_is_refused(make):
    """NumPy would count it from the back, and read another request."""
    size = 4 if make is _state else 2
    with pytest.raises(PlanError, match="negative slot"):
        make(slots=np.arange(-1, size - 1))


@pytest.mark.parametrize(("emitting", "fits"), [(0, True), (4, True), (9, True), (10, False)])
def test_no_more_requests_emit_than_there_are_tokens_to_emit_from(emitting, fits):
    """Four decode requests and five prefill tokens: at most nine requests end the step with a token."""
    if fits:
        assert _state(emitting=emitting, other_tokens=5).emitting == emitting
        return
    with pytest.raises(PlanError, match="more than can emit"):
        _state(emitting=emitting, other_tokens=5)


@pytest.mark.parametrize("limit", [float("nan"), 8.0, True, "8"])
def test_a_chunk_limit_that_is_no_integer_is_refused(limit):
    """NaN compares false with every bound and once passed this one."""
    with pytest.raises(PlanError, match="chunk_limit"):
        _state(chunk_limit=limit)


@pytest.mark.parametrize("name", ["seconds", "host_seconds"])
@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -0.1, True, "1"])
def test_an_outcome_whose_time_is_none_is_refused(name, seconds):
    """One such step would poison the achieved rate and the prices learnt from it."""
    with pytest.raises(PlanError, match=f"{name} is no duration"):
        _outcome(**{name: seconds})


@pytest.mark.parametrize("seconds", [None, 0.0, 0, np.float64(0.5)])
def test_an_outcome_without_a_time_or_with_a_short_one_is_ordinary(seconds):
    """A coarse clock reads 0."""
    assert _outcome(seconds=seconds).seconds == seconds
    assert _outcome(host_seconds=seconds).host_seconds == seconds


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"emitted": -1}, "emitted is no count"),
        ({"emitted": 1.5}, "emitted is no count"),
        ({"step": None}, "step is no count"),
        ({"admitted": np.array([3.0, 0.0])}, "admitted is not the array"),
        ({"accepted": [1, 0]}, "accepted is not the array"),
        ({"scores": np.zeros(2)}, "scores is not the array"),
        ({"scores": np.zeros((2, 5), np.int64)}, "scores is not the array"),
        ({"scores": np.zeros((2, 4))}, "more than there are scores"),
        ({"learn": _ints(1, 1)}, "learn is not the array"),
        ({"sampled": None}, "sampled is not the array"),
    ],
)
def test_an_outcome_of_another_type_is_refused_by_name(changed, words):
    """What reaches the signals' fits has the documented type, or it does not reach them."""
    with pytest.raises(PlanError, match=words):
        _outcome(**changed)


def test_integers_of_several_widths_are_ordinary():
    """Engines count admitted drafts in int32 beside slots in int64."""
    narrow = np.array([3, 0], dtype=np.int32)
    found = _outcome(admitted=narrow, judged=np.array([5, 1], dtype=np.int16), keys=_ints(8, 9))
    assert (found.total_drafted, found.total_admitted, found.total_accepted) == (10, 3, 1)
    with pytest.raises(PlanError, match="admitted is not within"):
        _outcome(admitted=np.array([6, 0], dtype=np.int32))


@pytest.mark.parametrize("requests", [1, 64, 65, 300])
def test_an_outcome_is_summed_right_at_any_size(requests):
    many = np.arange(requests)
    found = _outcome(
        slots=many,
        generations=many,
        drafted=np.full(requests, 5),
        admitted=many % 6,
        accepted=many % 3 % (many % 6 + 1),
        scores=np.zeros((requests, 5)),
        learn=many > 0,
        sampled=many > 1,
        emitted=requests,
    )
    assert found.total_drafted == 5 * requests
    assert found.total_admitted == sum(index % 6 for index in range(requests))
    assert found.total_accepted == sum(index % 3 % (index % 6 + 1) for index in range(requests))


def test_what_a_state_counts_is_counted_when_it_is_made():
    """Engines reuse their arrays: a plan of this step must not follow them to the next one."""
    scheduled = _ints(7, 0, 3, 7)
    state = _state(scheduled=scheduled, other_tokens=2, chunk_limit=12)
    scheduled[:] = 0
    assert (state.requests, state.certain_tokens, state.max_budget, state.highest_slot) == (4, 6, 8, 3)
    assert (state.total_scheduled, state.least_scheduled, state.most_scheduled) == (17, 0, 7)
    assert replace(state, scheduled=scheduled).total_scheduled == 0
    assert "highest_slot" not in repr(state)


def test_an_empty_step_is_ordinary():
    """The drain to zero: R = 0."""
    none = _ints()
    assert _state(slots=none, generations=none, scheduled=none, emitting=0).requests == 0
