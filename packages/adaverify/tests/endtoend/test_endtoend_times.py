"""What is timed: the curve, the parts of a step, and the stretches between steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from adaverify.bench.endtoend import shares
from adaverify.bench.endtoend.arms import Fixed, OurSteps
from adaverify.bench.endtoend.baseline import BaselineSteps, BodyGraphs
from adaverify.bench.endtoend.curve import measure_curve, table_of
from adaverify.bench.endtoend.gaps import measure_gaps
from adaverify.bench.endtoend.proof import gaps
from adaverify.bench.endtoend.rounds import launched, run_round
from adaverify.bench.endtoend.shares import measure_shares
from adaverify.bench.endtoend.stamps import LEAST, MODEL_BEGINS, MODEL_ENDS, Stamps, model_and_beside
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


def test_a_round_of_short_steps_keeps_all_their_times(ground, deck, monkeypatch):
    """A round lasts a quarter of a second: of short steps it has more than are kept at least."""
    monkeypatch.setitem(shares.SECONDS, "cpu", 0.25)
    monkeypatch.setattr(ground, "options", replace(ground.options, repeat=1))
    half, steps = deck.requests * 4, LEAST + 10
    points = [
        {"tokens": tier, "seconds": 0.25 / (steps + 0.5) if tier <= deck.requests + half else 0.05}
        for tier in deck.tiers
    ]
    found = measure_shares(deck, {"points": points})["budgets"][str(half)]
    assert found["steps_a_round"] == steps
    assert all(found[name]["model_us"] > 0 for name in ("ours", "published", "published-ahead"))


@pytest.mark.parametrize("steps", [1, LEAST, LEAST + 1, 5000])
def test_as_many_times_are_kept_as_steps_were_announced(steps):
    """All of a place, in the order in which they were taken, in room that grows by powers of two."""
    stamps = Stamps(torch.device("cpu"), steps)
    for _ in range(steps):
        stamps.mark(MODEL_BEGINS)
    times = stamps.read(MODEL_BEGINS)
    assert len(times) == steps
    assert (times[1:] >= times[:-1]).all()
    assert stamps.capacity & (stamps.capacity - 1) == 0


@pytest.mark.parametrize("least", [1, 5])
def test_a_round_launches_as_many_steps_as_are_announced(deck, priced, ground, least):
    """Those that settle, those that count and those launched ahead, in both arrangements."""
    graphs = BodyGraphs(deck)
    graphs.capture()
    for steps in (
        OurSteps(deck, Fixed(deck, 1)),
        BaselineSteps(deck, graphs, priced, waits=True),
        BaselineSteps(deck, graphs, priced),
    ):
        seen = []
        run_round(steps, ground.text.starts(deck.requests, 0), least=least, inspect=seen.append)
        assert len(seen) == launched(steps.ahead, least)


def test_the_model_ends_before_what_is_beside_it_begins():
    """Three steps by hand, the first of which does not count."""
    stamps = Stamps(torch.device("cpu"), 3)
    for place, times in ((MODEL_BEGINS, (0, 20, 50)), (MODEL_ENDS, (10, 35, 70))):
        stamps._times[place, :3] = 1000 * torch.tensor(times)
        stamps._counts[place] = 3
    model, beside = model_and_beside(stamps, 1)
    assert model.tolist() == [15.0]
    assert beside.tolist() == [15.0]


def test_more_marks_than_are_kept_are_refused():
    stamps = Stamps(torch.device("cpu"), 3)
    stamps._counts[0] = stamps.capacity + 1
    with pytest.raises(WrongValueError, match="more steps were marked"):
        stamps.read(0)


def test_a_clock_that_nothing_reads_is_refused():
    with pytest.raises(CapabilityError, match="clock cannot be read"):
        Stamps(torch.device("meta"), 3)


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
