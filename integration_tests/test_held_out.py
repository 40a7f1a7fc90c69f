"""Acceptance records are of text that the drafter was not trained on: two programs, one rule."""

from __future__ import annotations

import importlib

import pytest

from adaverify.texts import QUESTIONS, held_out


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
