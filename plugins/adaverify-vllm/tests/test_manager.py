"""What the manager promises beyond vLLM's own: lag, generations, guard, records and counters."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adaverify_contracts import StepRecord


def dear(tokens):
    return 1.0 + 1.0 * tokens


def test_without_prices_everything_is_verified_and_counted(drive):
    """The state is unpriced, in the total, in the record and in the counters."""
    records: list[StepRecord] = []
    made = drive(observer=records.append)
    made.add("a", "b")
    total, admitted, _ = made.step({"a": 7, "b": 3})
    assert (total, admitted) == (12, {"a": 7, "b": 3})
    made.record({"a": [0.5] * 7, "b": [0.5] * 7})
    assert [record.state for record in records] == ["unpriced"]
    assert made.manager.counters == {"unpriced": 1}


def test_samples_that_are_no_times_leave_everything_verified(drive):
    """No profile and no price: nothing raises into vLLM's start."""
    made = drive()
    made.manager.set_initial_cost_curves([])
    made.add("a")
    assert made.step({"a": 7})[0] == 8


def test_the_reason_without_prices_is_one_that_helps_inside_vllm(drive, caplog):
    """No command of ours measures vLLM's steps: its own profiling at the start does."""
    records: list[StepRecord] = []
    made = drive(observer=records.append)
    with caplog.at_level("WARNING", "vllm.adaverify"):
        made.manager.set_initial_cost_curves([])
    made.add("a")
    made.step({"a": 7})
    made.record({"a": [0.5] * 7})
    lines = [item.getMessage() for item in caplog.records]
    for line in (records[0].reason, *lines):
        assert "vLLM's own profiling at start gave no usable samples" in line
        assert "adaverify profile" not in line
    assert len(lines) == 1


def test_budgets_read_confidences_that_are_a_step_old(drive):
    """Confidences of the drafts to be sized are never read (maths section 5.5); those before them are."""
    made = drive()
    made.price(dear)
    made.add("a", "b")
    names = ("a", "b")
    made.record(dict.fromkeys(names, [0.9] * 7))
    first, _, _ = made.step(dict.fromkeys(names, 7))
    assert first == 16  # nothing may be read yet: optimistic, so everything pays
    made.record(dict.fromkeys(names, [0.0] * 7))
    second, _, _ = made.step(dict.fromkeys(names, 7))
    made.record(dict.fromkeys(names, [0.9] * 7))
    third, _, _ = made.step(dict.fromkeys(names, 7))
    # The second step sizes drafts of confidence 0 by the 0.9 before them, the third the other way round.
    assert second > 2
    assert third == 2


def test_the_ranking_reads_this_steps_confidences(drive):
    """The budget is spent on the drafts most likely to survive, whoever they were a step ago."""
    made = drive()
    made.price(dear)
    made.add("a", "b")
    for _ in range(3):
        made.record({"a": [0.95] * 7, "b": [0.3] * 7})
    made.record({"a": [0.1] * 7, "b": [0.95] * 7})
    total, admitted, _ = made.step({"a": 7, "b": 7})
    assert 2 < total < 16
    assert admitted["b"] == total - 2
    assert admitted["a"] == 0


def test_a_request_that_sat_out_a_step_is_optimistic(drive):
    """Its newest confidences are old enough by number, and they are those of the drafts to be sized."""
    made = drive()
    made.price(dear)
    made.add("a", "b")
    made.record({"a": [0.0] * 7, "b": [0.0] * 7})
    for _ in range(3):
        made.record({"b": [0.0] * 7})
    total, _, _ = made.step({"a": 7, "b": 7})
    assert total > 2


def test_a_prompt_still_read_gets_drafts_last(drive):
    """Placeholder drafts of a request that still reads its prompt cost and cannot gain."""
    made = drive(online=False)
    made.price(dear)
    made.add("decode")
    made.add("reading", prompt=100, computed=20)
    for _ in range(3):
        made.record({"decode": [0.9] * 7, "reading": [0.9] * 7})
    total, admitted, _ = made.step({"decode": 7, "reading": 7})
    assert admitted["reading"] == 0
    assert admitted["decode"] == total - 2 > 0


def test_everything_is_verified_where_trimming_gains_less_than_the_margin(drive):
    """Full verification is the incumbent."""
    made = drive(margin=0.5)
    made.price(lambda tokens: 50.0 + 0.2 * tokens)
    made.add("a", "b")
    for _ in range(3):
        made.record({"a": [0.5] * 7, "b": [0.5] * 7})
    assert made.step({"a": 7, "b": 7})[0] == 16


def test_confidences_that_are_no_numbers_verify_everything(drive):
    """The step says so, and the ranking takes them for 0."""
    made = drive()
    made.price(dear)
    made.add("a")
    for _ in range(3):
        made.record({"a": [float("nan")] * 7})
    assert made.step({"a": 7})[0] == 8
    made.record({"a": [0.5] * 7})
    assert made.manager.counters["invalid-confidences"] == 1


def test_records_say_what_was_planned_and_what_came_of_it(drive):
    """Verified from the device, accepted and emitted from how far requests grew."""
    records: list[StepRecord] = []
    made = drive(observer=records.append)
    made.price(dear)
    made.add("a", "b")
    for _ in range(3):
        made.record({"a": [0.9] * 7, "b": [0.2] * 7})
    total, admitted, _ = made.step({"a": 7, "b": 7})
    made.record({"a": [0.9] * 7, "b": [0.2] * 7}, {"a": 1 + admitted["a"], "b": 1})
    (record,) = records
    assert record.planned == record.verified == total - 2
    assert record.accepted == admitted["a"]
    assert record.emitted == record.accepted + 2
    assert record.state == "trimming"
    assert record.tier >= record.tokens == total
    assert record.lag == 1
    assert record.realised_seconds is not None and record.realised_seconds >= 0
    assert record.fallbacks == ()


def test_a_record_counts_a_request_whose_slot_was_taken_before_it_arrived(drive):
    """The length it grew to is its own; the successor starts from its own prompt."""
    records: list[StepRecord] = []
    made = drive(observer=records.append)
    made.add("a")
    made.step({"a": 7})
    made.record({"a": [0.5] * 7}, 4)
    slot = made.state.req_id_to_index.pop("a")
    made.state.put("b", slot, prompt=50)
    made.manager.add_request(slot)
    made.step({"b": 7})
    made.record({"b": [0.5] * 7}, 2)
    assert [record.emitted for record in records] == [4, 2]
    assert [record.accepted for record in records] == [3, 1]


def test_a_name_that_came_back_in_another_slot_is_found_there(drive):
    """Slots are looked up once for the same requests; one that was let in again under its name is another."""
    made = drive()
    made.price(dear)
    made.add("a", "b")
    made.step({"a": 7, "b": 7})
    made.record({"a": [0.9] * 7, "b": [0.9] * 7})
    assert made.manager._last is None
    made.state.put("b", 9)
    made.manager.add_request(9)
    made.step({"a": 7, "b": 7})
    assert made.manager._last.slots.tolist() == [0, 9]


def test_an_observer_that_fails_ends_the_trace_and_nothing_else(drive):
    """A full disk is counted, logged once, and does not reach vLLM."""

    def full(_):
        raise OSError(28, "No space left on device")

    made = drive(observer=full)
    made.add("a")
    for _ in range(2):
        made.step({"a": 7})
        made.record({"a": [0.5] * 7})
    assert made.manager.counters["trace-ended"] == 1


@pytest.mark.parametrize(("mode", "total"), [("none", 2), ("fixed", 16)])
def test_the_mode_can_be_forced(drive, mode, total):
    made = drive(mode=mode)
    made.price(dear)
    made.add("a", "b")
    assert made.step({"a": 7, "b": 7})[0] == total


def test_requests_that_come_and_go_keep_the_tier_that_was_decided(drive):
    """One request fewer changes what fills the tier; a crowd is planned anew. Totals hold either way."""
    made = drive(slots=64)
    made.price(lambda tokens: 20.0 + 0.5 * tokens)
    names = [f"r{i}" for i in range(16)]
    made.add(*names)
    rng = np.random.default_rng(0)
    for _ in range(3):
        made.record({name: rng.uniform(0.3, 0.95, 7) for name in names})
        made.step(dict.fromkeys(names, 7))
    made.record({name: [0.8] * 7 for name in names})
    tier, budget = made.manager._ahead.tier, made.manager._ahead.budget
    assert 0 < budget < 16 * 7
    total, _, _ = made.step(dict.fromkeys(names[:-1], 7))
    assert total == min(tier, 15 * 8)
    made.record({name: [0.8] * 7 for name in names[:-1]})
    made.add(*(f"s{i}" for i in range(16)))
    crowd = [*names, *(f"s{i}" for i in range(16))]
    total, admitted, boundaries = made.step(dict.fromkeys(crowd, 7))
    assert 32 <= total == boundaries[-1]
    assert len(admitted) == 32


@pytest.mark.parametrize(
    ("mode", "survival", "each"), [("none", 0.9, 1), ("fixed", 0.1, 8), ("adaptive", 0.0, 1)]
)
def test_nothing_and_everything_stay_so_when_a_request_leaves(drive, mode, survival, each):
    """A decision made ahead for nine requests serves eight of them."""
    made = drive(mode=mode)
    made.price(dear)
    names = [f"r{i}" for i in range(9)]
    made.add(*names)
    for _ in range(4):
        made.step(dict.fromkeys(names, 7))
        made.record(dict.fromkeys(names, [survival] * 7))
    assert made.step(dict.fromkeys(names[:-1], 7))[0] == 8 * each


def test_the_decode_path_of_an_empty_batch_is_ordinary(drive):
    """No request has drafts: the certain tokens are all there is."""
    made = drive()
    made.price(dear)
    made.add("a")
    assert made.step({"a": 0}, [])[0] == 1


def test_compacting_without_a_budget_says_what_to_call(drive):
    made = drive()
    with pytest.raises(AssertionError, match="call get_num_tokens first"):
        made.manager.compact_batch(np.zeros(1, np.int32), np.ones(1, np.int32), np.zeros(2, np.int32))


def test_nothing_on_the_decode_path_reads_the_relay(drive, monkeypatch):
    """What the relay brought is read behind the step, so the path before the forward never asks an event."""
    made = drive()
    made.price(dear)
    made.add("a")
    made.record({"a": [0.9] * 7})

    def asked(*_, **__):
        raise AssertionError("the decode path asked the relay")

    monkeypatch.setattr(type(made.manager.history._relay), "latest", asked)
    made.step({"a": 7})
    assert torch.equal(made.boundaries[1:], torch.full((16,), made.boundaries[-1].item(), dtype=torch.int32))
