"""Files of the command: none overwrites another, each is whole, and what cannot be is refused beforehand."""

from __future__ import annotations

import resource
from contextlib import contextmanager

import pytest

from adaverify.bench.endtoend import run as endtoend
from adaverify.files import write_text
from adaverify_contracts import AdaverifyError


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
