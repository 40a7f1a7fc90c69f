"""One request from arrival to completion, and what the caller sees of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from adaverify_contracts import EngineError, LoadedModel
from adaverify_engine.options import EngineOptions, Sampling
from adaverify_engine.parts import require_kind
from adaverify_engine.text import Detokenizer

if TYPE_CHECKING:
    from adaverify_engine.running import Running


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP_TOKEN = "stop token"
    STOP_TEXT = "stop text"
    LENGTH = "length"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Event:
    """Something a request emitted in one step.

    Attributes:
        request: id.
        tokens: new token ids, in order; at least one.
        text: new text that no later token can change or cut.
        finished: the reason when this was the last event, else None.
    """

    request: int
    tokens: tuple[int, ...]
    text: str
    finished: FinishReason | None


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request.

    Attributes:
        request: id.
        prompt_tokens: length of the prompt.
        tokens: emitted ids; a stop token, when one ended the request, is the last.
        text: their text, special tokens skipped, cut before a stop text.
        reason: why it ended.
        gaps: per token, best minus second-best logit where the token was chosen greedily, else NaN.
        logprobs: per token, when asked for, else empty.
        steps: decode steps the request took part in.
        error: what failed where the reason is ``FAILED``, else empty.
    """

    request: int
    prompt_tokens: int
    tokens: tuple[int, ...]
    text: str
    reason: FinishReason
    gaps: tuple[float, ...]
    logprobs: tuple[float, ...]
    steps: int
    error: str = ""


@dataclass(slots=True, eq=False)
class Request:
    """One request; the engine and its scheduler are the only writers.

    What changes in every step (tokens, gaps, lengths) is kept by slot while it runs (``Running``), and here
    before and after.

    ``computed`` is the number of tokens whose KV is valid. A request is prefill while ``computed`` is below
    the prompt length and decode afterwards; its query length says nothing about that. Requests with equal
    prompts have equal keys (``prompt_key``).

    Attributes:
        begun: tokens whose KV is valid when it is admitted.
        given: tokens handed out before it was admitted and, once it has ended, all of them; gaps: as many.
        running: where it is while it runs, None before and after.
    """

    id: int
    prompt: list[int]
    max_output: int
    sampling: Sampling
    stop_tokens: frozenset[int]
    noise: np.ndarray | None
    text: Detokenizer
    slot: int = -1
    begun: int = 0
    steps: int = 0
    pages: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    given: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finished: FinishReason | None = None
    error: str = ""
    key: int = 0
    running: Running | None = None

    @property
    def prompt_len(self) -> int:
        """Prompt tokens."""
        return len(self.prompt)

    @property
    def computed(self) -> int:
        """Tokens whose KV is valid."""
        return self.begun if self.running is None else int(self.running.computed[self.slot])

    @property
    def output(self) -> list[int]:
        """Tokens emitted so far; a copy."""
        return list(self.given) if self.running is None else self.running.output(self.slot)

    @property
    def tokens(self) -> list[int]:
        """Prompt and output; a copy."""
        return self.prompt + self.output

    @property
    def output_len(self) -> int:
        """Tokens emitted so far."""
        return len(self.given) if self.running is None else int(self.running.emitted[self.slot])

    @property
    def worst_case_kv(self) -> int:
        """Largest KV length: everything but the last token, drafts included since they never outrun it."""
        return self.prompt_len + self.max_output - 1

    def leave(self) -> None:
        """Take along what was kept by slot: the slot is given back."""
        running, slot = self.running, self.slot
        if running is None:
            return
        self.given, self.gaps = running.output(slot), running.gaps(slot)
        self.begun, self.steps = int(running.computed[slot]), int(running.steps[slot])
        self.running = None

    def completion(self, reason: FinishReason) -> Completion:
        """Return the request, finished for ``reason`` and out of its slot, as the caller sees it."""
        return Completion(
            request=self.id,
            prompt_tokens=self.prompt_len,
            tokens=tuple(self.given),
            text=self.text.text,
            reason=reason,
            gaps=tuple(self.gaps),
            logprobs=tuple(self.logprobs),
            steps=self.steps,
            error=self.error,
        )


def prompt_key(tokens: list[int]) -> int:
    """Return 53 bits that are equal for equal prompts, so that traces tell texts apart and not rounds."""
    digest = hashlib.blake2b(np.array(tokens, dtype=np.int64).tobytes(), digest_size=8).digest()
    # What a JSON reader keeps exact in a float64.
    return int.from_bytes(digest, "little") >> 11


def make_request(
    number: int, prompt: object, sampling: Sampling | None, options: EngineOptions, model: LoadedModel
) -> Request:
    """Return a request that waits.

    Args:
        number: its id.
        prompt: token ids.
        sampling: greedy defaults when None.
        options: of the engine.
        model: that will answer it.

    Raises:
        EngineError: the prompt is no sequence of ids, is empty, holds an id outside the vocabulary or is too
            long, or ``sampling`` is no ``Sampling``.
    """
    sampling = Sampling() if sampling is None else sampling
    require_kind("sampling", sampling, Sampling)
    geometry, tokens = model.model.geometry, prompt_ids(prompt)
    require_prompt(tokens, options.max_model_len - 1, geometry.vocabulary)
    output = min(sampling.max_tokens, options.max_model_len - len(tokens))
    own = set() if sampling.ignore_stop_tokens else set(geometry.stop_tokens)
    return Request(
        id=number,
        prompt=tokens,
        max_output=output,
        sampling=sampling,
        stop_tokens=frozenset(own | set(sampling.stop_tokens)),
        noise=None if sampling.greedy else noise_of(sampling, output, (options.seed, number)),
        text=Detokenizer(model.tokenizer, sampling.stop_texts, stream=sampling.stream),
        key=prompt_key(tokens),
    )


def noise_of(sampling: Sampling, output: int, default: tuple[int, int]) -> np.ndarray:
    """Return float64 [output, 2]: both coins of every output position, fixed before the first step.

    Args:
        sampling: has the seed, or none.
        output: positions.
        default: seed where the request names none.
    """
    seed = default if sampling.seed is None else (sampling.seed,)
    return np.random.default_rng(seed).random((output, 2))


def prompt_ids(prompt: object) -> list[int]:
    """Return a prompt's token ids as a list of int.

    Args:
        prompt: a sequence of integers, or a NumPy array or tensor of them with one dimension.

    Raises:
        EngineError: it is something else: text, floats, booleans, a dictionary.
    """
    if hasattr(prompt, "tolist") and getattr(prompt, "ndim", None) == 1:
        prompt = prompt.tolist()
    if isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes):
        ids = list(prompt)
        if all(isinstance(one, int | np.integer) and not isinstance(one, bool) for one in ids):
            return [int(one) for one in ids]
    raise EngineError(
        "the prompt is no sequence of token ids",
        arrived=prompt if isinstance(prompt, str) else type(prompt).__name__,
        allowed="integers in a list, a tuple or a one-dimensional array",
        remedy="encode text with the model's tokenizer first",
    )


def require_prompt(tokens: list[int], limit: int, vocabulary: int) -> None:
    """Refuse a prompt that no request can have.

    Args:
        tokens: the prompt.
        limit: most tokens, one of the model's length being kept for the output.
        vocabulary: number of token ids.

    Raises:
        EngineError: empty, too long, or an id outside the vocabulary; the message has the numbers.
    """
    if not 1 <= len(tokens) <= limit:
        raise EngineError(
            "the prompt does not fit",
            arrived=f"{len(tokens)} tokens",
            allowed=f"1 .. {limit}, one token of max_model_len being kept for the output",
            remedy="shorten the prompt or raise max_model_len",
        )
    strange = [token for token in tokens if not 0 <= token < vocabulary]
    if strange:
        raise EngineError(
            "the prompt holds token ids outside the vocabulary",
            arrived=strange[:8],
            allowed=f"0 .. {vocabulary - 1}",
            remedy="encode the prompt with this model's tokenizer",
        )
