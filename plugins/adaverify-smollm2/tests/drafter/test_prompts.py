"""What prompts are cut from, and that HumanEval and held-out documents stay out of training."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

CODE = textwrap.dedent('''
    """A module.

    This paragraph of the module's documentation is long enough to be taken for running text, since it has
    more than one hundred and sixty characters and ends with a full stop.
    """


    class Box:
        def lid(self, height: int) -> int:
            """Return the height of the lid above the ground, given the box's own height in centimetres."""
            return height


    def _hidden():
        """A private function is nobody's example of anything, however long its documentation may be."""
    ''')


@pytest.fixture
def document():
    """A small Python file."""
    from drafter_training.corpus import Document

    return Document("here", "box.py", CODE)


class Letters:
    """A tokenizer of single bytes."""

    stop_tokens = (0,)

    def encode(self, text: str) -> list[int]:
        return [min(ord(letter), 255) for letter in text]

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        return [1, *self.encode(messages[0]["content"]), 2]


def test_stubs_end_with_their_docstring_at_the_left_margin(document):
    """A method becomes a function of its own; private functions and bodies are left out."""
    from drafter_training.pieces import stubs

    (stub,) = stubs(document)
    assert stub.code.startswith('def lid(self, height: int) -> int:\n    """Return')
    assert stub.code.endswith('centimetres."""\n') and "return height" not in stub.code
    assert stub.summary.startswith("Return the height")


def test_paragraphs_are_running_text(document):
    """Docstrings of code and paragraphs of documents; no lists, no short lines, no markup."""
    from drafter_training.corpus import Document
    from drafter_training.pieces import paragraphs

    assert [text[:14] for text in paragraphs(document)] == ["This paragraph"]
    prose = "Sentences of some length. " * 9
    text = f"Title\n=====\n\n{prose}\n\n- {prose}\n\n.. note:: {prose}\n\n>>> f(1)\n"
    assert list(paragraphs(Document("here", "page.rst", text))) == [prose.strip()]


def test_a_line_of_the_benchmark_keeps_a_text_out():
    """Shared lines of 40 characters count, whatever their indentation; short ones do not."""
    from drafter_training.prompts import HumanEvalFilter

    line = "Return the greatest common divisor of two integers"
    leaks = HumanEvalFilter([f'def f(a):\n    """ {line}\n    """\n', "def g():"])
    assert leaks(f'x\n        """ {line}')
    assert not leaks(line[:20]) and not leaks("def g():")


def test_documents_belong_to_one_split():
    """By name alone: about 4 % validation, 4 % held out."""
    from drafter_training.prompts import split_of

    splits = [split_of(f"file{number}.py", "prose") for number in range(5000)]
    assert splits == [split_of(f"file{number}.py", "prose") for number in range(5000)]
    assert 0.03 < splits.count("validation") / 5000 < 0.05
    assert 0.03 < splits.count("prose") / 5000 < 0.05


def test_prompts_come_in_all_kinds_and_survive_the_disk(document, tmp_path):
    """Built from one file and the written openings; held-out ones are not among the training prompts."""
    from drafter_training.prompts import KINDS, PromptSet, build

    limits = {"code": 5, "chat": 40, "prose": 40, "validation": 6, "prose_test": 8}
    built = build(iter([document]), Letters(), limits, seed=1)
    built.save(tmp_path / "prompts.npz")
    found = PromptSet.load(tmp_path / "prompts.npz")
    for name in PromptSet.__slots__:
        assert np.array_equal(getattr(found, name), getattr(built, name))
    assert len(found.of("human-eval")) == len(found.of("human-eval-chat")) == 164
    assert {KINDS[kind] for kind in found.kind[found.of("train")]} >= {"chat", "prose"}

    def texts(split: str) -> set[tuple[int, ...]]:
        return {tuple(found.ids[found.starts[i] : found.starts[i + 1]].tolist()) for i in found.of(split)}

    for split in ("validation", "human-eval", "human-eval-chat", "prose"):
        assert texts(split) and not texts(split) & texts("train")
    again = build(iter([document]), Letters(), limits, seed=1)
    assert np.array_equal(again.ids, built.ids)


def test_padding_keeps_the_prompts():
    """Rectangles hold each prompt from the left."""
    from drafter_training.prompts import PromptSet

    ids, starts = np.arange(6, dtype=np.uint16), np.array([0, 2, 6])
    empty = np.zeros(2, np.uint8)
    padded, lengths = PromptSet(ids, starts, empty, empty, np.array(["", ""]), np.array([0])).padded(
        np.array([1, 0]), 5
    )
    assert lengths.tolist() == [4, 2]
    assert padded.tolist() == [[2, 3, 4, 5, 0], [0, 1, 0, 0, 0]]


def test_the_most_frequent_ids_come_first_and_stops_are_kept():
    """Counted over what the target wrote, prompts and padding left out."""
    from drafter_training.sequences import Sequences
    from drafter_training.stages import frequent

    tokens = np.array([[9, 9, 9, 4, 4, 5], [9, 5, 4, 0, 8, 8]])
    rows = Sequences.cut(tokens, np.array([3, 1]), np.ones(2, bool), np.arange(2), np.array([0, 2]))
    assert rows.last.tolist() == [5, 3]
    assert frequent(rows, 10, 5, np.array([0, 2])).tolist()[:4] == [0, 2, 4, 5]
