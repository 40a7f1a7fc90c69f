"""What the target is asked to continue for acceptance records: code, chat, prose, none of it trained on."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path

from adaverify.prompts import human_eval_prompts
from adaverify_contracts import PromptError

_SKIPPED = {"site-packages", "dist-packages", "__pycache__", "idle_test", "lib2to3", "encodings"}
# Words of an opening, at most and at least.
_OPENING = 32
_SHORTEST = 20
_LONGEST_MODULE = 1 << 20

QUESTIONS = (
    "My sourdough starter smells like nail polish. Is it dead, and how do I save it?",
    "Why do we see lightning before we hear thunder?",
    "Plan a quiet weekend in a small coastal town for two people on a tight budget.",
    "What is the difference between a virus and a bacterium, in two paragraphs?",
    "Write a polite note asking my neighbour to stop parking in front of my gate.",
    "How does a refrigerator move heat out of a box that is already cold?",
    "Give me three ways to remember people's names at a party.",
    "I have eggs, spinach, rice and an onion. What can I cook in twenty minutes?",
    "Explain compound interest with an example that uses 100 euros.",
    "What should I check before I buy a used bicycle?",
    "Tell me the story of a lighthouse keeper who receives a letter without a sender.",
    "How do I reverse a list in Python without changing the original?",
)
"""Questions of our own; none of them is among those that the drafter was trained with."""


@dataclass(frozen=True, slots=True)
class Text:
    """What is to be continued, of one source; ``chat`` wants the chat template, ``place`` is for messages."""

    source: str
    text: str
    chat: bool
    place: str


def texts_of(code: int, chat: int, prose: int) -> list[Text]:
    """Return so many texts of each source, always the same ones.

    Code is HumanEval from its start. Chat takes questions of our own and HumanEval from its end in turns.
    Prose are openings of paragraphs in the standard library's documentation, of modules that the drafter's
    training held out.

    Raises:
        PromptError: there are not so many.
    """
    problems = [(f"HumanEval/{index}", text) for index, text in enumerate(human_eval_prompts())]
    questions = [(f"question {index}", text) for index, text in enumerate(QUESTIONS, start=1)]
    turns = [one for pair in zip_longest(questions, reversed(problems)) for one in pair if one is not None]
    sources = {
        "code": (code, problems),
        "chat": (chat, turns),
        "prose": (prose, prose_openings() if prose else ()),
    }
    found: list[Text] = []
    for source, (count, known) in sources.items():
        if count > len(known):
            raise PromptError(
                f"there are not so many {source} prompts",
                arrived=count,
                allowed=f"0 .. {len(known)}",
                remedy=f"lower --{source}",
            )
        found += [Text(source, text, source == "chat", place) for place, text in known[:count]]
    return found


def held_out(name: str) -> bool:
    """Tell whether the training of the block drafter held the document of this name out, for tests alone."""
    share = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32
    return 0.04 <= share < 0.08


@cache
def prose_openings() -> tuple[tuple[str, str], ...]:
    """Return (module, opening of a paragraph), held-out modules of the standard library taking turns."""
    columns = [
        [(name, " ".join(paragraph.split(" ")[:_OPENING])) for paragraph in _paragraphs(path)]
        for name, path in _modules()
    ]
    return tuple(one for turn in zip_longest(*columns) for one in turn if one is not None)


def _modules() -> Iterator[tuple[str, Path]]:
    root = Path(sysconfig.get_path("stdlib"))
    found = []
    for folder, below, names in os.walk(root):
        # Installed packages may lie below; they are many and not walked through.
        below[:] = set(below) - _SKIPPED
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    for path in sorted(found):
        name = str(path.relative_to(root))
        if held_out(name):
            yield name, path


def _paragraphs(path: Path) -> list[str]:
    text = path.read_text("utf-8", errors="replace")
    if len(text) > _LONGEST_MODULE:
        return []
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        # Parts of the tests are wrong on purpose.
        return []
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))]
    docs = [ast.get_docstring(node) or "" for node in nodes]
    blocks = [" ".join(block.split()) for doc in docs for block in re.split(r"\n\s*\n", doc)]
    return [block for block in dict.fromkeys(blocks) if _is_prose(block)]


def _is_prose(block: str) -> bool:
    letters = sum(character.isalpha() or character == " " for character in block)
    return (
        len(block.split(" ")) >= _SHORTEST
        and block[0].isupper()
        and block.endswith((".", ":"))
        and letters > 0.9 * len(block)
    )
