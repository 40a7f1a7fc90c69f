"""Acceptance records are of text that the drafter was not trained on, and the page has their figures."""

from __future__ import annotations

import importlib

import pytest

from adaverify.texts import QUESTIONS, held_out
from adaverify_replay import REGIMES, SOURCES, AcceptanceRecords


@pytest.fixture
def training(root, monkeypatch):
    """The training's modules, which are no part of a distribution."""
    folder = root / "plugins" / "adaverify-smollm2" / "training"
    if not folder.is_dir():
        pytest.skip("the source tree is not here")
    monkeypatch.syspath_prepend(str(folder))
    return {
        name: importlib.import_module(f"drafter_training.{name}") for name in ("corpus", "prompts", "topics")
    }


def test_prose_is_cut_from_documents_that_training_held_out(training):
    """For every module of this interpreter's library, under the name that training knows it by."""
    names = [document.name for document in training["corpus"].python_files()]
    split_of = training["prompts"].split_of
    assert {name for name in names if held_out(name)} == {
        name for name in names if split_of(name, "prose") == "prose"
    }
    assert 0 < sum(map(held_out, names)) < len(names) / 8


def test_no_question_was_trained_on(training):
    topics = training["topics"]
    assert not set(QUESTIONS) & {question for topic in topics.TOPICS for question in topics.questions(topic)}


def test_the_page_has_the_figures_of_the_shipped_records(root):
    """A file that is recorded again is another table."""
    records = AcceptanceRecords.load()
    page = (root / "docs" / "explanation" / "records.md").read_text(encoding="utf-8")
    shown = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    rows = [row for row in shown if len(row) == 5 and row[1] in REGIMES]
    expected = []
    for regime in REGIMES:
        for source in SOURCES:
            kind = records.take(records.of(source, regime))
            counts = (str(kind.sequences), str(kind.positions), f"{kind.accepted.mean():.2f}")
            expected.append([source, regime, *counts])
    assert rows == expected
