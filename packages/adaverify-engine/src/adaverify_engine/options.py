"""What an engine is started with and what a request asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from adaverify_contracts import EngineError, Limits

# Lowest, highest, and the value that changes nothing. Beyond these, float32 logits of some hundreds overflow,
# or a draw finds no token at all.
_RANGES = {
    "temperature": (1e-6, 1e6, 0.0),
    "top_p": (1e-6, 1.0, 1.0),
    "repetition_penalty": (1e-3, 1e3, 1.0),
    "presence_penalty": (-1e3, 1e3, 0.0),
    "frequency_penalty": (-1e3, 1e3, 0.0),
}


# Page ids and lengths are int32 in kernels; a seed is 64 bits of a generator's state.
_LARGEST_SIZE = 2**31 - 1
_LARGEST_SEED = 2**63 - 1


def _require_int(owner: str, name: str, value: object, lowest: int, highest: int | None = None) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < lowest or (highest is not None and value > highest):  # type: ignore[operator]
        within = f">= {lowest}" if highest is None else f"in {lowest} .. {highest}"
        raise EngineError(
            f"{owner}.{name} is out of range",
            arrived=value,
            allowed=f"an int {within}",
            remedy=f"choose {name} {within}",
        )


def _require_real(owner: str, name: str, value: object, fits: bool, allowed: str) -> None:
    if not fits:
        raise EngineError(
            f"{owner}.{name} is out of range",
            arrived=value,
            allowed=allowed,
            remedy=f"choose {name} within it",
        )


def prefill_chunk_on(device: str) -> int:
    """Return how many prompt tokens a step computes at most where nobody says.

    Few on a CPU, where every decode request of the step waits for them. Many on an accelerator, where decode
    requests wait for each step that reads prompts: the fewer there are the better.

    Args:
        device: torch device string.
    """
    return 256 if device.partition(":")[0] == "cpu" else 4096


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Sizes of one engine.

    Attributes:
        max_requests: requests that run at once, decode and prefill together; also the concurrency.
        draft_tokens: K; 0 turns speculation off.
        max_model_len: longest sequence in tokens, prompt and output.
        page_size: tokens in one KV page.
        num_pages: KV pages, the null page included; None reserves every request's worst case.
        prefill_chunk: prompt tokens computed in one step, all requests together.
        seed: base seed of requests that bring none.
        device: torch device string.
        dtype: ``float32`` or ``bfloat16``, of the KV cache; give the model the same.

    Raises:
        EngineError: a field is out of range; all sizes are checked here and nowhere later.
    """

    max_requests: int = 16
    draft_tokens: int = 7
    max_model_len: int = 1024
    page_size: int = 16
    num_pages: int | None = None
    prefill_chunk: int = 256
    seed: int = 0
    device: str = "cpu"
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        lowest = {
            "max_requests": 1,
            "draft_tokens": 0,
            "max_model_len": 2,
            "page_size": 1,
            "prefill_chunk": 1,
        }
        for name, bound in lowest.items():
            _require_int("EngineOptions", name, getattr(self, name), bound, _LARGEST_SIZE)
        _require_int("EngineOptions", "seed", self.seed, 0, _LARGEST_SEED)
        if self.num_pages is not None:
            _require_int("EngineOptions", "num_pages", self.num_pages, 2, _LARGEST_SIZE)
        device: object = self.device
        if not isinstance(device, str) or not device:
            raise EngineError(
                "EngineOptions.device is no name of a device",
                arrived=device,
                allowed="a torch device string: cpu, cuda or cuda:N",
                remedy="pass the name, such as 'cpu', and no index or torch.device",
            )
        if not isinstance(self.dtype, str) or self.dtype not in ("float32", "bfloat16"):
            raise EngineError(
                "EngineOptions.dtype is not supported",
                arrived=self.dtype,
                allowed="float32, bfloat16",
                remedy="float32 for token identity, bfloat16 for speed",
            )

    @property
    def limits(self) -> Limits:
        """The limits that verifier, drafter and buffers are made for."""
        return Limits(
            max_requests=self.max_requests,
            draft_tokens=self.draft_tokens,
            max_model_len=self.max_model_len,
            page_size=self.page_size,
        )

    @property
    def pool_pages(self) -> int:
        """Pages of the pool, the null page included."""
        if self.num_pages is not None:
            return self.num_pages
        return 1 + self.max_requests * self.limits.table_width


@dataclass(frozen=True, slots=True)
class Sampling:
    """What one request asks for.

    Attributes:
        temperature: 0 is greedy; otherwise 1e-6 .. 1e6, and logits are divided by it.
        top_p: nucleus mass, 1e-6 .. 1; 1 keeps the whole law.
        max_tokens: tokens to emit at most.
        seed: seed of this request's noise; None derives one from the engine's seed and the request id. Noise
            belongs to (request, output position), so results do not depend on batch mates or trimming.
        stop_tokens: further ids that end the request; the stop token is the last token of the completion.
        stop_texts: texts that end the request; the text is cut before them.
        ignore_stop_tokens: True runs past the model's own stop tokens (benchmarks).
        learn: False keeps this request out of calibration.
        logprobs: True records the log-probability of every emitted token under the model's own law: no
            temperature, no nucleus, no penalty.
        stream: False leaves the text out of all events but the last, and decodes it once, there.
        trim_invariant: True accepts a draft only if it equals the token that the target draws with the noise
            of its position. The text is then the same whatever is drafted and verified, token for token, and
            not in its law alone. Costs accepted drafts with a drafter that draws; with one that is
            deterministic every request is judged so.
        repetition_penalty: 1e-3 .. 1e3; divides the positive logits of tokens of prompt and output and
            multiplies the negative ones; 1 changes nothing.
        presence_penalty: -1e3 .. 1e3; subtracted once from the logit of each token of the output.
        frequency_penalty: -1e3 .. 1e3; subtracted for each time the token stands in the output.

    Raises:
        EngineError: a field is out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 128
    seed: int | None = None
    stop_tokens: tuple[int, ...] = ()
    stop_texts: tuple[str, ...] = ()
    ignore_stop_tokens: bool = False
    learn: bool = True
    logprobs: bool = False
    stream: bool = True
    trim_invariant: bool = False
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    def __post_init__(self) -> None:
        for name, (low, high, neutral) in _RANGES.items():
            value = getattr(self, name)
            fits = value == neutral or (_is_real(value) and low <= value <= high)
            allowed = f"{neutral:g}, which changes nothing, or {low:g} .. {high:g}"
            if name == "temperature":
                allowed = f"0, which is greedy, or {low:g} .. {high:g}"
            _require_real("Sampling", name, value, fits and not isinstance(value, bool), allowed)
        for name in ("ignore_stop_tokens", "learn", "logprobs", "stream", "trim_invariant"):
            value = getattr(self, name)
            _require_real("Sampling", name, value, isinstance(value, bool), "True or False")
        _require_int("Sampling", "max_tokens", self.max_tokens, 1)
        if self.seed is not None:
            _require_int("Sampling", "seed", self.seed, 0)
        stops: object = self.stop_tokens
        _require_real("Sampling", "stop_tokens", stops, isinstance(stops, tuple), "a tuple of token ids")
        for token in self.stop_tokens:
            _require_int("Sampling", "stop_tokens", token, 0)
        texts: object = self.stop_texts
        if not isinstance(texts, tuple) or not all(isinstance(text, str) and text for text in texts):
            raise EngineError(
                "Sampling.stop_texts holds something that is not a non-empty text",
                arrived=self.stop_texts,
                allowed="a tuple of non-empty strings",
                remedy="write ('a',) for one stop text",
            )

    @property
    def greedy(self) -> bool:
        """Whether every token is the argmax."""
        return self.temperature == 0.0

    @property
    def trim_sensitive(self) -> bool:
        """Whether an unsafe trimming rule could change what is emitted: sampled, and not by equality."""
        return not self.greedy and not self.trim_invariant

    @property
    def penalised(self) -> bool:
        """Whether the logits are changed before they decide."""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return penalties != (1.0, 0.0, 0.0)

    @property
    def teaches(self) -> bool:
        """Whether labels may calibrate: wanted, and of a law that the drafter can know of (no penalty)."""
        return self.learn and not self.penalised


def _is_real(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
