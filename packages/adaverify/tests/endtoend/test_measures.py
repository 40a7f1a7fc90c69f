"""Curve, shares, gaps, and the file that keeps them."""

from __future__ import annotations

import pytest

from adaverify.bench.endtoend.baseline import BodyGraphs
from adaverify.bench.endtoend.curve import measure_curve
from adaverify.bench.endtoend.proof import gaps
from adaverify.bench.endtoend.shares import measure_shares
from adaverify.bench.endtoend.store import Store
from adaverify_contracts import (
    AdaverifyError,
)


def test_a_curve_has_a_point_for_every_tier(deck):
    found = measure_curve(deck)
    assert [point["tokens"] for point in found["points"]] == list(deck.tiers)
    assert all(0 < point["low"] <= point["seconds"] <= point["high"] for point in found["points"])


def test_shares_leave_what_is_beside_the_model(deck, priced):
    """A step less the model, round by round, at both budgets."""
    graphs = BodyGraphs(deck)
    graphs.capture()
    found = measure_shares(deck, graphs, priced)["budgets"]
    assert found.keys() == {"12", "21"}
    for one in found.values():
        assert one["model_us"] > 0
        for name in ("ours", "baseline"):
            beside = one[name]["step_us"] - one["model_us"]
            assert one[name]["beside_model_us"] == pytest.approx(beside, rel=1e-3, abs=one["model_us"])
            assert one[name]["share"] == one[name]["beside_model_us"] / one[name]["step_us"]


def test_gaps_are_stretches_that_nothing_covers():
    spans = [(0.0, 4.0), (1.0, 2.0), (5.0, 6.0), (9.0, 10.0)]
    assert gaps(spans, 2) == {"longest_gap_us": 3.0, "gaps_us_a_step": 2.0, "device_us_a_step": 5.0}
    assert gaps([], 2) == {}


def test_results_of_something_else_are_refused(tmp_path):
    path = tmp_path / "endtoend.json"
    Store(path, {"device": "a"}).keep("curve", "1", {"x": 1})
    assert Store(path, {"device": "a"}).get("curve", "1") == {"x": 1}
    with pytest.raises(AdaverifyError, match="cannot be continued"):
        Store(path, {"device": "b"})
    path.write_text("{")
    with pytest.raises(AdaverifyError, match="cannot be continued"):
        Store(path, {"device": "a"})
