"""One file under two options of a command is refused before anything is written or run."""

from __future__ import annotations

import pytest

from adaverify.files import require_apart
from adaverify_contracts import AdaverifyError


@pytest.fixture
def kept(tmp_path):
    """A file of the user's, and a function that says it is as it was."""
    path = tmp_path / "mine.txt"
    path.write_text("a line\nanother\n")
    return path


@pytest.mark.parametrize(
    "options",
    [
        ("--output", "mine.txt", "--record", "mine.txt"),
        ("--output", "./mine.txt", "--prompts", "mine.txt"),
        ("--record", "mine.txt", "--prompts", "mine.txt"),
        ("mine.txt", "--output", "mine.txt"),
        ("--plot", "mine.png", "--output", "mine.png"),
    ],
)
def test_calibrate_refuses_two_names_of_one_file(tiny, invoke, kept, monkeypatch, options):
    monkeypatch.chdir(kept.parent)
    result = invoke("calibrate", *options)
    assert result.exit_code == 3
    assert "name one file" in result.stderr
    assert kept.read_text() == "a line\nanother\n"
    assert list(kept.parent.glob("mine.png")) == []


def test_a_link_is_the_file_it_leads_to(tmp_path, kept):
    link, hard = tmp_path / "link", tmp_path / "hard"
    link.symlink_to(kept)
    hard.hardlink_to(kept)
    for other in (link, hard):
        with pytest.raises(AdaverifyError, match="--out and --in name one file"):
            require_apart({"--out": other}, {"--in": [tmp_path / "no", kept]})


def test_files_that_are_not_there_yet_are_compared_by_name(tmp_path):
    new = tmp_path / "new"
    with pytest.raises(AdaverifyError, match="--plot and --table"):
        require_apart({"--plot": new, "--table": tmp_path / "x" / ".." / "new"}, {})
    require_apart({"--plot": new, "--table": None}, {"--in": [tmp_path / "other"]})


def test_profile_and_report_refuse_it_too(tiny, invoke, kept, monkeypatch):
    monkeypatch.chdir(kept.parent)
    trace = kept.rename("steps.png")
    for arguments in (
        ("report", "steps.png", "--plot", "steps.png"),
        ("profile", "--table", "c.png", "--plot", "c.png"),
    ):
        result = invoke(*arguments)
        assert result.exit_code == 3
        assert "name one file" in result.stderr
    assert (kept.parent / trace).read_text() == "a line\nanother\n"
