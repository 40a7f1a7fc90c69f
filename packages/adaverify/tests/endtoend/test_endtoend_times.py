"""What is timed: the curve, the parts of a step, and the stretches between steps."""

from __future__ import annotations

import pytest
import torch

from adaverify.bench.endtoend.curve import measure_curve, table_of
from adaverify.bench.endtoend.gaps import measure_gaps
from adaverify.bench.endtoend.proof import gaps
from adaverify.bench.endtoend.shares import measure_shares
from adaverify.bench.endtoend.stamps import CAPACITY, MODEL_BEGINS, MODEL_ENDS, Stamps, model_and_beside
from adaverify_contracts import CapabilityError, WrongValueError


def test_a_curve_has_a_point_for_every_tier(deck):
    found = measure_curve(deck)
    assert [point["tokens"] for point in found["points"]] == list(deck.tiers)
    assert all(0 < point["low"] <= point["seconds"] <= point["high"] for point in found["points"])


def test_shares_time_each_arrangement_around_its_own_model(deck):
    """Model and rest make a step, in every arrangement, at both budgets."""
    points = [{"tokens": tier, "seconds": 1e-3 * (1 + 0.2 * tier)} for tier in deck.tiers]
    found = measure_shares(deck, {"points": points})["budgets"]
    assert found.keys() == {"12", "21"}
    for one in found.values():
        for name in ("ours", "published", "published-ahead"):
            own = one[name]
            assert own["model_us"] > 0
            assert own["beside_model_us"] > 0
            assert own["share"] == own["beside_model_us"] / own["step_us"]
        for name in ("published", "published-ahead"):
            assert one[name]["step_ratio"]["low"] <= one[name]["step_ratio"]["median"]


def test_the_model_ends_before_what_is_beside_it_begins():
    """Three steps by hand, the first of which does not count."""
    stamps = Stamps(torch.device("cpu"))
    for place, times in ((MODEL_BEGINS, (0, 20, 50)), (MODEL_ENDS, (10, 35, 70))):
        stamps._times[place, :3] = 1000 * torch.tensor(times)
        stamps._counts[place] = 3
    model, beside = model_and_beside(stamps, 1)
    assert model.tolist() == [15.0]
    assert beside.tolist() == [15.0]


def test_more_marks_than_are_kept_are_refused():
    stamps = Stamps(torch.device("cpu"))
    stamps._counts[0] = CAPACITY + 1
    with pytest.raises(WrongValueError, match="more steps were marked"):
        stamps.read(0)


def test_a_clock_that_nothing_reads_is_refused():
    with pytest.raises(CapabilityError, match="clock cannot be read"):
        Stamps(torch.device("meta"))


def test_the_stretch_between_steps_is_measured_without_a_profiler(deck):
    """Marks at both ends of whole steps, and around the model within."""
    points = [{"tokens": tier, "seconds": 1e-3 * (1 + 0.2 * tier)} for tier in deck.tiers]
    found = measure_gaps(deck, table_of(deck, {"points": points}))
    assert found["steps"] == 8
    assert 0 < found["gap_us"] <= found["gap_us_p95"] <= found["longest_gap_us"]
    assert found["before_model_us"] + found["behind_model_us"] < found["inside_us"]
    assert found["launch_us"] > 0


def test_gaps_are_stretches_that_nothing_covers():
    spans = [(0.0, 4.0), (1.0, 2.0), (5.0, 6.0), (9.0, 10.0)]
    assert gaps(spans, 2) == {"longest_gap_us": 3.0, "gaps_us_a_step": 2.0, "device_us_a_step": 5.0}
    assert gaps([], 2) == {}
