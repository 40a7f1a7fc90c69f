"""Cut documents into what a prompt is made of: paragraphs, function stubs, stretches of code."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from drafter_training.corpus import Document

_VERSE = re.compile(r"\b\d+\. |[\[\]¶]")
_LONGEST_STUB = 1200


@dataclass(frozen=True, slots=True)
class Stub:
    """A function up to the end of its docstring, and the docstring's first sentence."""

    code: str
    summary: str


def paragraphs(document: Document) -> Iterator[str]:
    """Yield paragraphs of running text: those of the file itself, or of the docstrings of Python code."""
    if document.name.endswith("topics.py"):
        texts = _constants(document.text)
    elif document.name.endswith("plain_text_bible.py"):
        # One line is one paragraph there; a fifth of them is plenty of a single book.
        lines = document.text.partition('"""')[2].splitlines()[::5]
        texts = [_VERSE.sub("", line) for line in lines]
    elif document.name.endswith(".py"):
        texts = [doc for _, doc in _documented(document.text)]
    else:
        texts = [document.text]
    for text in texts:
        for block in re.split(r"\n\s*\n", text):
            flat = " ".join(block.split())
            if _running(block, flat):
                yield flat


def stubs(document: Document) -> Iterator[Stub]:
    """Yield the documented functions of a Python file, at their own left margin."""
    lines = document.text.splitlines()
    for node, doc in _documented(document.text):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            last = node.body[0].end_lineno or node.lineno
            code = textwrap.dedent("\n".join(lines[node.lineno - 1 : last])) + "\n"
            summary = " ".join(doc.strip().split("\n\n")[0].split())
            if 80 <= len(code) <= _LONGEST_STUB and 20 <= len(summary) <= 300:
                yield Stub(code, summary)


def stretches(document: Document, every: int = 60, length: int = 14) -> Iterator[str]:
    """Yield stretches of ``length`` lines of a Python file, one in ``every`` lines."""
    lines = document.text.splitlines()
    for start in range(0, len(lines) - length, every):
        text = textwrap.dedent("\n".join(lines[start : start + length])).strip("\n")
        if 150 <= len(text) <= _LONGEST_STUB:
            yield text + "\n"


def _documented(text: str) -> Iterator[tuple[ast.AST, str]]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            doc = ast.get_docstring(node)
            if doc:
                yield node, doc


def _constants(text: str) -> list[str]:
    return [
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def _running(block: str, flat: str) -> bool:
    if not 160 <= len(flat) <= 4000 or block.lstrip().startswith((">>>", "..", ":", "+", "|", "-", "*", "#")):
        return False
    letters = sum(character.isalpha() or character == " " for character in flat)
    return (
        flat[0].isalpha() and letters / len(flat) > 0.9 and flat.count(". ") + flat.endswith((".", ":")) >= 1
    )
