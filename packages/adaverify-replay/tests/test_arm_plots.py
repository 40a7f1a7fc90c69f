"""Plots of arms: every arm and case is in the drawing, and one case alone is enough."""

import pytest

from adaverify_replay.arm_plots import plot_arms, plot_capture, plot_planning, plot_tiers

matplotlib = pytest.importorskip("matplotlib")


def arm(rate):
    return {
        "tokens_per_s_rounds": [0.9 * rate, rate, 1.2 * rate],
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
    assert "16 requests, fixed, 16 graphs" in drawing
    assert "16 requests, adaptive, 17 graphs" in drawing
    assert "held by captures" in drawing


def test_captures_of_several_sizes_are_told_apart_and_bytes_of_none_have_no_panel(tmp_path):
    """Both had the same labels, and a CPU a panel of nothing."""
    one = {"graphs": 32, "seconds": 4.0, "pool_bytes": None}
    ladders = [{"limit": 8, "even_padding": 0.3, "chosen_padding": 0.1}]
    found = {count: {"fixed": one, "adaptive": one, "ladders": ladders} for count in (32, 64)}
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        drawing = plot_capture(found, tmp_path / "capture.svg").read_text()
    for count in (32, 64):
        assert drawing.count(f">{count} requests, fixed, 32 graphs<") == 1
        assert drawing.count(f">{count} requests, even<") == 1
    assert "held by captures" not in drawing


def test_a_point_is_the_median_of_ratios(monkeypatch, tmp_path):
    """Not the ratio of medians, which is 1 here; what the table says is 2."""
    base, own = arm(1.0), arm(1.0)
    base["tokens_per_s_rounds"], own["tokens_per_s_rounds"] = [1.0, 2.0, 3.0], [2.0, 4.0, 1.0]
    drawn = {}

    def errorbar(axes, have, middle, yerr, label, **style):
        drawn[label] = (middle, yerr)
        return real(axes, have, middle, yerr=yerr, label=label, **style)

    real = matplotlib.axes.Axes.errorbar
    monkeypatch.setattr(matplotlib.axes.Axes, "errorbar", errorbar)
    plot_arms({4: {"fixed-7": base, "adaptive": own}}, tmp_path / "arms.png")
    assert drawn["adaptive"][0] == [2.0]
    below, above = drawn["adaptive"][1]
    assert (below, above) == ([pytest.approx(2.0 - (1 / 3 + 2.0) / 2)], [0.0])
    assert drawn["fixed-7"][0] == [1.0]


def test_ten_drafts_are_more_than_nine(tmp_path):
    arms = {4: {"fixed-10": arm(2.0), "fixed-9": arm(1.0)}}
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        drawing = plot_arms(arms, tmp_path / "arms.svg").read_text()
    assert "fixed-10 = 1" in drawing


@pytest.mark.parametrize("plot", [plot_arms, plot_planning])
def test_a_caption_stands_below(plot, arms, tmp_path):
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        drawing = plot(arms, tmp_path / "arms.svg", "a card; context 48").read_text()
    assert "a card; context 48" in drawing
