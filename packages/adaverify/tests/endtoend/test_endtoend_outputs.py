"""Files of the command: none overwrites another, each is whole, and what cannot be is refused beforehand."""

from __future__ import annotations

import json
import resource
from contextlib import contextmanager

import pytest

from adaverify.bench.endtoend import run as endtoend
from adaverify.bench.endtoend.figures import caption
from adaverify.bench.endtoend.store import Store
from adaverify.files import write_text
from adaverify_contracts import AdaverifyError, WrongValueError

IDENTITY = {
    "device": "a card",
    "torch": "2",
    "context": 48,
    "records": {"model": "a", "drafter": "b"},
    "model": {"layers": 2, "hidden": 64},
}


@contextmanager
def full_disk(limit=20):
    """No file may grow past ``limit`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def never(monkeypatch):
    monkeypatch.setattr(endtoend._Bench, "measure", lambda *_: pytest.fail("measured"))


@pytest.mark.parametrize("link", [None, "symlink_to", "hardlink_to"])
@pytest.mark.parametrize("name", ["endtoend.json", "curve.png"])
def test_the_report_may_not_be_what_the_folder_keeps(bench, never, tmp_path, name, link):
    """It replaced the results, and the exit code was 0."""
    kept = tmp_path / "out" / name
    kept.parent.mkdir()
    kept.write_text("hours of work")
    report = kept
    if link is not None:
        report = tmp_path / "report"
        getattr(report, link)(kept)
    found = bench("--stage", "plot", "--json", report)
    assert found.exit_code == 3
    assert "endtoend keeps" in found.stderr
    assert kept.read_text() == "hours of work"


def test_the_report_may_not_become_a_plot_of_the_default_folder(ours, invoke, never, tmp_path):
    (tmp_path / "endtoend").mkdir()
    found = invoke("bench", "endtoend", "--device", "cpu", "--json", "endtoend/../endtoend/capture.png")
    assert found.exit_code == 3
    assert not (tmp_path / "endtoend" / "capture.png").exists()


@pytest.mark.parametrize("make", ["file", "link"])
def test_a_default_folder_that_cannot_be_is_refused_beforehand(ours, text, invoke, never, tmp_path, make):
    place = tmp_path / "endtoend"
    if make == "file":
        place.write_text("something else")
    else:
        place.symlink_to(tmp_path / "nowhere")
    found = invoke("bench", "endtoend", "--device", "cpu", "--requests", 1, "--stage", "curve")
    assert found.exit_code == 3
    assert "cannot be written to" in found.stderr


def test_standard_output_is_no_folder(ours, invoke, never, tmp_path):
    found = invoke("bench", "endtoend", "--device", "cpu", "--out", "-")
    assert found.exit_code == 3
    assert "several files" in found.stderr
    assert not (tmp_path / "-").exists()


def test_an_earlier_report_outlives_a_full_disk(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("complete")
    with full_disk(), pytest.raises(AdaverifyError, match="make room"):
        write_text(path, "x" * 100, "--json")
    assert path.read_text() == "complete"
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_behind_a_link_is_written_there(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "report.json")
    write_text(tmp_path / "link", "new", "--json")
    assert (tmp_path / "report.json").read_text() == "new"
    assert (tmp_path / "link").is_symlink()


def test_a_benchmark_without_stages_says_so(ours, invoke):
    found = invoke("bench", "plan", "--device", "cpu", "--stage", "arms")
    assert found.exit_code == 3
    assert "plan runs as a whole" in found.stderr


def test_a_full_disk_ends_the_run_with_what_was_kept(bench, monkeypatch, tmp_path):
    """It was a fault of ours with a traceback; the next case would be lost as well."""
    assert bench("--stage", "curve").exit_code == 0
    kept = (tmp_path / "out" / "endtoend.json").read_text()
    measured = []

    def measure(bench, stage, case):
        measured.append((stage, case))
        return json.loads(kept)["stages"]["curve"]["2"]

    monkeypatch.setattr(endtoend._Bench, "measure", measure)
    with full_disk(len(kept) // 2):
        found = bench("--stage", "curve", "--requests", 3, "--requests", 4)
    assert found.exit_code == 3
    assert "was measured and cannot be kept: File too large" in found.stderr
    assert "make room" in found.stderr
    assert "Traceback" not in found.stderr
    assert measured == [("curve", "3")]
    assert (tmp_path / "out" / "endtoend.json").read_text() == kept


def _no_plots(monkeypatch):
    def draw(*_):
        raise AdaverifyError("a plot needs matplotlib, which is not installed", remedy="install it")

    monkeypatch.setattr(endtoend, "draw", draw)


def test_missing_plots_cost_neither_table_nor_json(bench, monkeypatch, tmp_path):
    _no_plots(monkeypatch)
    found = bench("--stage", "curve", "--stage", "plot", "--json", tmp_path / "report.json")
    assert found.exit_code == 3
    assert "needs matplotlib" in found.stderr and "install it" in found.stderr
    assert "2 requests" in found.stdout
    (one,) = json.loads((tmp_path / "report.json").read_text())["benchmarks"]
    assert one["measured"] and "needs matplotlib" in one["reason"]
    assert len(one["rows"]) == 15


def test_a_failing_plot_does_not_hide_a_failing_case(bench, monkeypatch):
    def measure(bench, stage, case):
        raise WrongValueError("seven differs from eight", arrived=7, allowed="8")

    _no_plots(monkeypatch)
    monkeypatch.setattr(endtoend._Bench, "measure", measure)
    found = bench("--stage", "curve", "--stage", "plot")
    assert found.exit_code == 1
    assert "seven differs" in found.stderr and "needs matplotlib" in found.stderr
    assert "Traceback" not in found.stderr


def test_plots_say_what_they_were_measured_on(tmp_path):
    store = Store(tmp_path / "endtoend.json", IDENTITY)
    store.keep("curve", "1", {"rounds": 3, "points": []})
    assert caption(store, "curve") == (
        "a card; torch 2; context 48; records of a with b; rounds: 3; model: layers 2, hidden 64"
    )
