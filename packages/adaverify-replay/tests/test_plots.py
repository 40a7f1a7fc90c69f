"""Plots: real files, drawn without a display and without global state."""

import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest

from adaverify_contracts import AdaverifyError, TraceError
from adaverify_replay import plot_cost_curve, plot_reliability, plot_trace, require_plottable

matplotlib = pytest.importorskip("matplotlib")


@pytest.fixture
def table():
    """A table of two curves, one with an outlier."""
    return SimpleNamespace(
        curves=(
            SimpleNamespace(
                requests=1,
                context=512,
                tokens=(1, 2, 4),
                measured=(0.03, 0.02, 0.04),
                seconds=(0.025, 0.025, 0.04),
            ),
            SimpleNamespace(
                requests=8, context=512, tokens=(8, 64), measured=(0.05, 0.09), seconds=(0.05, 0.09)
            ),
        )
    )


def test_a_cost_curve_is_drawn_with_its_points(table, tmp_path):
    """One line and one row of points a curve, in milliseconds."""
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        drawing = plot_cost_curve(table, tmp_path / "cost.svg").read_text()
    assert "1 requests, context 512" in drawing
    assert "8 requests, context 512" in drawing
    assert "step time, ms" in drawing
    assert plot_cost_curve(table, tmp_path / "cost.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_an_earlier_plot_outlives_a_full_disk(table, tmp_path):
    """The new one is written beside it; a link stays a link."""
    (tmp_path / "link.png").symlink_to(tmp_path / "cost.png")
    kept = plot_cost_curve(table, tmp_path / "link.png").read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(AdaverifyError, match="make room"):
            plot_cost_curve(table, tmp_path / "link.png")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / "cost.png").read_bytes() == kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cost.png", "link.png"]


def test_an_empty_table_still_gives_axes(tmp_path):
    """No curve, no crash."""
    assert plot_cost_curve(SimpleNamespace(curves=()), tmp_path / "cost.png").stat().st_size > 0


def test_a_trace_is_drawn_with_gaps_where_nothing_was_measured(record, tmp_path):
    """None is a gap, not a zero."""
    records = [record(step=step, realised_seconds=None if step % 2 else 0.02) for step in range(6)]
    assert plot_trace(records, tmp_path / "trace.png").read_bytes()[:4] == b"\x89PNG"


def test_a_trace_without_records_is_refused(tmp_path):
    """There is nothing to see."""
    with pytest.raises(TraceError, match="without records"):
        plot_trace([], tmp_path / "trace.png")


def test_an_unknown_suffix_says_what_to_write(table, tmp_path):
    """The format comes from the suffix."""
    with pytest.raises(AdaverifyError, match=r"\.png, \.svg or \.pdf"):
        plot_cost_curve(table, tmp_path / "cost.nonsense")


def reliability(position, *bins, ece=0.1):
    points = tuple(SimpleNamespace(rows=rows, predicted=p, observed=o) for rows, p, o in bins)
    return SimpleNamespace(position=position, ece=ece, bins=points)


def test_reliability_is_drawn_for_every_position_and_regime(tmp_path):
    """A panel each, with the error before and after; a position without rows has an empty one."""
    before = [reliability(1, (10, 0.9, 0.6), (3, 0.2, 0.2), ece=0.25), reliability(2, ece=None)]
    after = [reliability(1, (13, 0.6, 0.5), ece=0.05), reliability(2, ece=None)]
    series = {"before": before, "after": after}
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        drawing = plot_reliability({"greedy": series, "sampled": series}, tmp_path / "r.svg").read_text()
    for words in ("greedy: accepted", "sampled: accepted", "position 2", "ECE 25.0 to 5.0 %", "ECE - to - %"):
        assert words in drawing
    assert plot_reliability({"greedy": series}, tmp_path / "r.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_reliability_of_nothing_is_refused(tmp_path):
    """No regime, or K = 0."""
    for nothing in ({}, {"greedy": {"before": [], "after": []}}):
        with pytest.raises(AdaverifyError, match="without positions"):
            plot_reliability(nothing, tmp_path / "r.png")


def test_importing_the_package_leaves_matplotlib_alone():
    """matplotlib is an extra: it is loaded when a plot is asked for."""
    code = "import sys, adaverify_replay; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_suffix_is_refused_before_anything_is_measured(tmp_path):
    """A measurement of minutes must not end in a wrong file name; no file is made to find out."""
    for name in ("curve.png", "curve.SVG", "curve.pdf"):
        require_plottable(tmp_path / name)
    for name in ("curve", "curve.nonsense", "curve.eps"):
        with pytest.raises(AdaverifyError, match=r"\.png, "):
            require_plottable(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
