"""The prompts of a run: taken from HumanEval or a file, and encoded for the model."""

from __future__ import annotations

from pathlib import Path

from adaverify.blame import blaming_plugins
from adaverify.console import count_of, note
from adaverify.loaded import require_ids
from adaverify.prompts import human_eval_prompts, numbered_prompts
from adaverify.session import Session
from adaverify_contracts import PromptError

# With 64 new tokens and three rounds some 100 seconds on two quiet cores, measuring step times included.
_HUMAN_EVAL_COUNT = 8


def take_prompts(path: Path | None, count: int | None) -> tuple[list[str], list[str]]:
    """Return the prompts, and where each one stands for messages about it.

    Args:
        path: a file of prompts; HumanEval when None.
        count: how many; 8 of HumanEval and all of a file when None.

    Raises:
        PromptError: the file cannot be read, or holds no prompts.
    """
    if path is None:
        texts, where = human_eval_prompts(count or _HUMAN_EVAL_COUNT), "HumanEval"
        places = [f"HumanEval/{index}" for index in range(len(texts))]
    else:
        numbered, where = numbered_prompts(path, count), str(path)
        texts = [text for _, text in numbered]
        places = [f"{path} line {line}" for line, _ in numbered]
    if count is not None and len(texts) < count:
        note(f"{where} holds {count_of(len(texts), 'prompt')}; --count asked for {count}")
    return texts, places


def encode_prompts(
    session: Session, texts: list[str], places: list[str], tokens: int, chat: bool
) -> list[list[int]]:
    """Return the token ids of every prompt; says how many have no room for all new tokens.

    Args:
        session: has tokenizer and longest sequence.
        texts: the prompts; places: where each one stands, for messages.
        tokens: new tokens of each prompt, at most.
        chat: whether a prompt goes into the chat template.

    Raises:
        PromptError: the tokenizer refuses a prompt, or no request could hold it; by number and place.
        PluginError: the tokenizer raised something else, or returned no ids of the vocabulary.
    """
    tokenizer = session.model.tokenizer
    vocabulary = session.model.model.geometry.vocabulary
    encoded: list[list[int]] = []
    cut = []
    for number, (text, place) in enumerate(zip(texts, places, strict=True), 1):
        named = f"prompt {number} of {len(texts)} ({place})"
        try:
            with blaming_plugins(session.plugins):
                found = (
                    tokenizer.chat([{"role": "user", "content": text}]) if chat else tokenizer.encode(text)
                )
        except PromptError as error:
            raise PromptError(
                f"{named} is refused: {error.problem}",
                **({"arrived": error.arrived} if error.has_arrived else {}),
                allowed=error.allowed,
                remedy="correct or remove it" + (", or leave out --chat" if chat else ""),
            ) from error
        ids = require_ids(
            found, "chat" if chat else "encode", named, vocabulary, session.model_name, session.plugins
        )
        if not 1 <= len(ids) < session.longest:
            raise PromptError(
                f"{named} does not fit the model",
                arrived=f"{len(ids)} tokens, {text[:40]!r} and so on",
                allowed=f"1 .. {session.longest - 1} tokens, one being kept for the output",
                remedy="shorten or remove it, or choose another model",
            )
        if len(ids) + tokens > session.longest:
            cut.append(f"prompt {number} for {session.longest - len(ids)}")
        encoded.append(ids)
    if cut:
        have = "has" if len(cut) == 1 else "have"
        room = count_of(tokens, "new token")
        note(f"{len(cut)} of {count_of(len(texts), 'prompt')} {have} no room for {room}, {cut[0]}")
    return encoded
