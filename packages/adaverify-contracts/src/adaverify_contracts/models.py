"""Target models and drafters for the reference engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from adaverify_contracts import _check
from adaverify_contracts.enums import Seen
from adaverify_contracts.errors import LayoutError

if TYPE_CHECKING:
    import numpy as np
    import torch

    from adaverify_contracts.limits import Limits
    from adaverify_contracts.reading import BlockDrafter


@dataclass(frozen=True, slots=True)
class ModelGeometry:
    """Sizes an engine needs to allocate KV pages and buffers; ``stop_tokens`` end a sequence."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_model_len: int
    stop_tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        for size in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocabulary", "max_model_len"):
            _check.at_least("ModelGeometry", size, getattr(self, size), 1)


class Attend(Protocol):
    """The engine's attention: stores this step's keys and values, then attends over the paged cache."""

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Return [T, heads, head_dim] for query [T, heads, head_dim], key and value [T, kv_heads, head_dim].

        Positions are already encoded in query and key. The softmax scale is ``head_dim ** -0.5``.
        """
        ...


@runtime_checkable
class TargetModel(Protocol):
    """A decoder as the engine drives it; it holds weights and no KV."""

    @property
    def geometry(self) -> ModelGeometry:
        """Sizes of this model."""
        ...

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Return final hidden states [T, hidden] (after the last norm) for int64 tokens and positions [T]."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 logits [T, vocabulary]."""
        ...


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids and back."""

    def encode(self, text: str) -> list[int]:
        """Return token ids of plain text, without special tokens added."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of ``tokens``, special tokens skipped."""
        ...

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Return ids of the chat template applied to ``messages``, ready for the assistant's turn."""
        ...


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How to load a model.

    Attributes:
        device: torch device string.
        dtype: ``float32`` or ``bfloat16``.
        cache_dir: where downloaded files are kept, None for the plugin's default.
        offline: True forbids any download.
        progress: called as ``progress(done_bytes, total_bytes or None)`` while fetching.
    """

    device: str = "cpu"
    dtype: str = "bfloat16"
    cache_dir: Path | None = None
    offline: bool = False
    progress: Callable[[int, int | None], None] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check.one_of("ModelOptions", "dtype", self.dtype, ("float32", "bfloat16"))


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its tokenizer, ready to run."""

    model: TargetModel
    tokenizer: Tokenizer


@dataclass(frozen=True, slots=True)
class ModelDescriptor:
    """A model as a plugin registers it.

    Attributes:
        name: unique name.
        description: one line for lists.
        load: called as ``load(options)``; may download, and raises ``ModelFileError``.
        geometry: of what ``load`` returns, exactly; with it sizes are refused before anything is loaded. None
            where only loading tells.
    """

    name: str
    description: str
    load: Callable[[ModelOptions], LoadedModel] = field(repr=False)
    geometry: ModelGeometry | None = None

    def __post_init__(self) -> None:
        _check.name("ModelDescriptor", self.name)
        _check.instance("ModelDescriptor", "description", self.description, str)
        _check.callable_field("ModelDescriptor", "load", self.load)
        if self.geometry is not None:
            _check.instance("ModelDescriptor", "geometry", self.geometry, ModelGeometry)


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """Draft tokens for one step; one width K for all requests, only verification is ragged.

    Attributes:
        tokens: int64 [R, K]; -1 where nothing was drafted. A -1 is masked and never used as an index.
        scheduled: int64 NumPy [R]; how many leading tokens of each row are real.
        scores: float32 [R, K]; the drafter's raw score per position, any real number; 0 where undrafted.
        probabilities: float32 [R, K, vocabulary], the law each token was drawn from; None when the drafter is
            deterministic given the prefix (its law is one-hot).
    """

    tokens: torch.Tensor
    scheduled: np.ndarray
    scores: torch.Tensor
    probabilities: torch.Tensor | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.tokens.shape)
        if len(shape) != 2 or tuple(self.scores.shape) != shape or len(self.scheduled) != shape[0]:
            raise LayoutError(
                "DraftBatch fields disagree about [R, K]",
                arrived={
                    "tokens": shape,
                    "scores": tuple(self.scores.shape),
                    "scheduled": len(self.scheduled),
                },
                allowed="tokens [R, K], scores [R, K], scheduled [R]",
                remedy="draft one width for all requests and mask with -1",
            )


@runtime_checkable
class Drafter(Protocol):
    """Proposes draft tokens per request slot."""

    def start(self, slot: int, prompt: Sequence[int]) -> None:
        """Begin a request in ``slot``; whatever the slot held before is gone."""
        ...

    def propose(self, slots: Sequence[int], room: np.ndarray) -> DraftBatch:
        """Return drafts for ``slots``; request i gets at most ``room[i]`` tokens (it may be 0)."""
        ...

    def extend(self, slot: int, tokens: Sequence[int]) -> None:
        """Append tokens that were really emitted; drafts that were not admitted or rejected never arrive."""
        ...

    def stop(self, slot: int) -> None:
        """End the request in ``slot``."""
        ...


@dataclass(frozen=True, slots=True)
class DraftState:
    """What a device drafter keeps by request slot, on the run device at fixed addresses.

    With S slots and L = ``Limits.max_kv_len`` + 1 columns:

    Attributes:
        history: int32 [S, L]; prompt and emitted tokens.
        length: int32 [S]; how many of them there are.
        drafts: int32 [S, K]; the last proposal.
        scores: float32 [S, K]; its raw scores.
        scheduled: int32 [S]; how many leading drafts are real.
        hits: float32 [S] and trials: float32 [S]; decayed counts of accepted and tested drafts.
    """

    history: torch.Tensor
    length: torch.Tensor
    drafts: torch.Tensor
    scores: torch.Tensor
    scheduled: torch.Tensor
    hits: torch.Tensor
    trials: torch.Tensor


@runtime_checkable
class DeviceDrafter(Drafter, Protocol):
    """A drafter that can propose inside the captured graph of a decode step."""

    @property
    def state(self) -> DraftState:
        """The state by slot. An engine that accepts on the device appends to it there."""
        ...

    def draft(self, row_slot: torch.Tensor) -> None:
        """Write drafts, scores and scheduled of the slots in int32 [R], -1 for padding; launches only.

        Every live request gets K drafts, whatever room it has: the host must know the total. Steps that draft
        nothing may lie between two calls; they append to ``state`` like any other.
        """
        ...

    def advanced(self, slot: int, count: int) -> None:
        """Learn that the device appended ``count`` tokens to the slot by itself."""
        ...


@dataclass(frozen=True, slots=True)
class DrafterDescriptor:
    """A drafter as a plugin registers it.

    Attributes:
        name: unique name.
        seen: what its score for position k has seen.
        deterministic: True when drafts are a function of the prefix (then any trimming rule is lossless).
        factory: called once as ``factory(limits, device)``; a ``BlockDrafter`` is driven by the engine.
        target: name of the one model it was made for; None drafts for any.
        obstacle: called as ``obstacle(K)``; returns why the drafter cannot draft K tokens, such as weights
            that are not there; an empty string where it can. None where there is nothing to ask.
    """

    name: str
    seen: Seen
    deterministic: bool
    factory: Callable[[Limits, torch.device], Drafter | BlockDrafter] = field(repr=False)
    target: str | None = None
    obstacle: Callable[[int], str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check.name("DrafterDescriptor", self.name)
        _check.instance("DrafterDescriptor", "seen", self.seen, Seen)
        _check.instance("DrafterDescriptor", "deterministic", self.deterministic, bool)
        _check.callable_field("DrafterDescriptor", "factory", self.factory)
        if self.target is not None:
            _check.instance("DrafterDescriptor", "target", self.target, str)
        if self.obstacle is not None:
            _check.callable_field("DrafterDescriptor", "obstacle", self.obstacle)

    def refusal(self, draft_tokens: int) -> str:
        """Return why the drafter cannot draft K tokens here, an empty string where it can."""
        return "" if self.obstacle is None else self.obstacle(draft_tokens)
