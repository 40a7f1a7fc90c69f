"""Plots of arms: every arm and case is in the drawing, and one case alone is enough."""

import pytest

from adaverify_replay.arm_plots import plot_arms, plot_capture, plot_planning, plot_tiers

matplotlib = pytest.importorskip("matplotlib")


def arm(rate):
    return {
        "tokens_per_s": rate,
        "tokens_per_s_low": 0.9 * rate,
        "tokens_per_s_high": 1.2 * rate,
        "token_latency_us": 1e6 / rate,
        "verified_a_step": 3.0,
        "accepted_length": 2.5,
        "waste": 0.4,
    }


@pytest.fixture
def arms():
    """Two arms at two sizes, a third that was measured at one of them."""
    return {
        1: {"none": arm(100.0), "fixed-7": arm(200.0)},
        64: {"fixed-7": arm(900.0), "adaptive": arm(950.0)},
    }


@pytest.mark.parametrize("plot", [plot_arms, plot_planning])
def test_every_arm_is_drawn_where_it_was_measured(plot, arms, tmp_path):
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        drawing = plot(arms, tmp_path / "arms.svg").read_text()
    for word in ("none", "fixed-7", "adaptive", "requests at once", ">64<"):
        assert word in drawing
    assert plot({64: arms[64]}, tmp_path / "one.png").stat().st_size > 0


def test_tiers_are_stairs_of_each_size(tmp_path):
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        drawing = plot_tiers({1: [(1, 0.01), (8, 0.02)], 4: [(4, 0.02)]}, tmp_path / "tiers.svg").read_text()
    assert "1 requests" in drawing
    assert "4 requests" in drawing


def test_captures_stand_beside_each_other(tmp_path):
    one = {"graphs": 16, "seconds": 4.0, "pool_bytes": 1 << 20}
    ladders = [{"limit": 8, "even_padding": 0.3, "chosen_padding": 0.1}]
    found = {16: {"fixed": one, "adaptive": {**one, "graphs": 17}, "ladders": ladders}}
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        drawing = plot_capture(found, tmp_path / "capture.svg").read_text()
    assert "fixed, 16 graphs" in drawing
    assert "adaptive, 17 graphs" in drawing
