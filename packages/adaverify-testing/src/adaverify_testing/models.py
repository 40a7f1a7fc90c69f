"""A real model small enough for any test: two layers of random weights, a step well under a millisecond."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adaverify_contracts import LoadedModel, ModelGeometry, ModelOptions

if TYPE_CHECKING:
    import torch

    from adaverify_contracts import Attend

_HIDDEN = 32
_HEADS = 2
_HEAD_DIM = 16
_LAYERS = 2


class TinyModel:
    """A pre-norm decoder with two query heads over one KV head; its greedy text falls into cycles.

    Cycles are what prompt lookup drafts well, so acceptance is neither 0 nor 1. Subclass it to misbehave.

    Args:
        vocabulary: token ids.
        max_model_len: longest sequence in tokens.
        seed: of the weights.
        options: device and dtype.
        stop_tokens: ids that end a sequence.
    """

    def __init__(
        self,
        vocabulary: int = 64,
        max_model_len: int = 512,
        seed: int = 0,
        options: ModelOptions | None = None,
        stop_tokens: tuple[int, ...] = (),
    ) -> None:
        import torch

        options = options or ModelOptions(dtype="float32")
        random = torch.Generator().manual_seed(seed)
        where = {"device": options.device, "dtype": getattr(torch, options.dtype)}

        def weight(rows: int, columns: int, scale: float) -> torch.Tensor:
            return (torch.randn(rows, columns, generator=random) * scale).to(**where)

        self.geometry = ModelGeometry(
            "tiny", _LAYERS, _HIDDEN, _HEADS, 1, _HEAD_DIM, vocabulary, max_model_len, stop_tokens
        )
        self._embedding = weight(vocabulary, _HIDDEN, 1.0)
        # Weak, so that the text repeats itself although every position differs.
        self._places = weight(max_model_len, _HIDDEN, 0.05)
        self._mix = [weight(_HIDDEN, (_HEADS + 2) * _HEAD_DIM, 0.25) for _ in range(_LAYERS)]
        self._out = [weight(_HEADS * _HEAD_DIM, _HIDDEN, 0.25) for _ in range(_LAYERS)]
        self._up = [weight(_HIDDEN, 2 * _HIDDEN, 0.2) for _ in range(_LAYERS)]
        self._down = [weight(2 * _HIDDEN, _HIDDEN, 0.15) for _ in range(_LAYERS)]
        self._head = weight(_HIDDEN, vocabulary, 1.0)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Return final hidden states [T, 32] for int64 tokens and positions [T]."""
        return self.forward_tapped(tokens, positions, attend, ())[0]

    def forward_tapped(
        self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend, taps: tuple[int, ...]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return final hidden states, and the residual stream after the layers ``taps``, counted from 1."""
        import torch
        from torch.nn.functional import relu, rms_norm

        features = []
        # A draft may stand past the longest sequence; its row is computed and never emitted.
        hidden = self._embedding[tokens] + self._places[positions.clamp(max=len(self._places) - 1)]
        for layer in range(_LAYERS):
            mixed = (rms_norm(hidden, (_HIDDEN,)) @ self._mix[layer]).view(len(tokens), -1, _HEAD_DIM)
            query, key, value = mixed[:, :_HEADS], mixed[:, _HEADS:-1], mixed[:, -1:]
            hidden = hidden + attend(layer, query, key, value).reshape(len(tokens), -1) @ self._out[layer]
            hidden = hidden + relu(rms_norm(hidden, (_HIDDEN,)) @ self._up[layer]) @ self._down[layer]
            if layer + 1 in taps:
                features.append(hidden)
        tapped = torch.cat(features, dim=1) if features else hidden[:, :0]
        return rms_norm(hidden, (_HIDDEN,)), tapped

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 logits [T, vocabulary]."""
        return (hidden @ self._head).float()


class TinyTokenizer:
    """One token a character, modulo the vocabulary; the empty text has no token."""

    def __init__(self, vocabulary: int = 64) -> None:
        self._vocabulary = vocabulary

    def encode(self, text: str) -> list[int]:
        """Return one id a character."""
        return [ord(letter) % self._vocabulary for letter in text]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return one printable character a token; it need not be the one that was encoded."""
        return "".join(chr(ord("0") + token) for token in tokens)

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Return the ids of ``role: content`` lines and a line for the answer."""
        lines = [f"{message['role']}: {message['content']}\n" for message in messages]
        return self.encode("".join([*lines, "assistant: "]))


def tiny_model(
    options: ModelOptions | None = None,
    *,
    vocabulary: int = 64,
    max_model_len: int = 512,
    seed: int = 0,
    stop_tokens: tuple[int, ...] = (),
) -> LoadedModel:
    """Return a tiny model and its tokenizer; ``ModelDescriptor("tiny", "...", tiny_model)`` registers it."""
    model = TinyModel(vocabulary, max_model_len, seed, options, stop_tokens)
    return LoadedModel(model, TinyTokenizer(vocabulary))
