"""Sizes and constants of a llama-architecture decoder, read from its file and checked against one another."""

from __future__ import annotations

from dataclasses import dataclass

from adaverify_contracts import ModelFileError
from adaverify_smollm2.gguf_file import GgufFile


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """What the forward pass needs to know besides the weights.

    Attributes:
        layers: decoder layers.
        hidden: width of the residual stream.
        heads: query heads.
        kv_heads: key and value heads; it divides ``heads``.
        head_dim: width of a head, even because rotary encoding turns pairs.
        intermediate: width of the gated feed-forward.
        vocabulary: rows of the embedding.
        context: longest sequence the model was trained on, in tokens.
        norm_eps: constant inside the root of every RMS norm.
        rope_base: base of the rotary frequencies.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    context: int
    norm_eps: float
    rope_base: float

    @classmethod
    def read(cls, file: GgufFile) -> LlamaConfig:
        """Read the configuration of a llama-architecture file.

        Raises:
            ModelFileError: another architecture, a key missing, scaled rotary frequencies, or sizes that
                contradict one another.
        """
        architecture = file.text("general.architecture")
        if architecture != "llama":
            raise _contradiction("the architecture is another", architecture, "llama")
        _refuse_scaled_rope(file)
        heads = file.integer("llama.attention.head_count", 1)
        hidden = file.integer("llama.embedding_length", 1)
        config = cls(
            layers=file.integer("llama.block_count", 1),
            hidden=hidden,
            heads=heads,
            kv_heads=file.integer("llama.attention.head_count_kv", 1),
            head_dim=_head_dim(file, hidden, heads),
            intermediate=file.integer("llama.feed_forward_length", 1),
            vocabulary=len(file.items("tokenizer.ggml.tokens", str)),
            context=file.integer("llama.context_length", 1),
            norm_eps=file.positive_float("llama.attention.layer_norm_rms_epsilon"),
            rope_base=file.positive_float("llama.rope.freq_base"),
        )
        config._check()
        return config

    def _check(self) -> None:
        if self.heads % self.kv_heads:
            raise _contradiction(
                "kv_heads does not divide heads",
                (self.kv_heads, self.heads),
                "a whole number of heads per group",
            )
        if self.head_dim % 2:
            raise _contradiction(
                "head_dim is odd", self.head_dim, "an even width, since rotary encoding turns pairs"
            )


def _head_dim(file: GgufFile, hidden: int, heads: int) -> int:
    if file.has("llama.attention.key_length"):
        head_dim = file.integer("llama.attention.key_length", 1)
    elif hidden % heads:
        raise _contradiction("heads does not divide hidden", (heads, hidden), "a whole width per head")
    else:
        head_dim = hidden // heads
    rotated = file.integer("llama.rope.dimension_count", 1)
    if rotated != head_dim:
        raise _contradiction("rotary encoding covers a part of the head only", rotated, f"all {head_dim}")
    return head_dim


def _refuse_scaled_rope(file: GgufFile) -> None:
    key = "llama.rope.scaling.type"
    if file.has(key) and file.text(key) != "none":
        raise _contradiction("rotary frequencies are scaled", file.text(key), "no scaling")


def _contradiction(problem: str, arrived: object, allowed: str) -> ModelFileError:
    return ModelFileError(
        f"the model file does not fit this decoder: {problem}",
        arrived=arrived,
        allowed=allowed,
        remedy="pass the GGUF of SmolLM2 or of another plain llama-architecture model",
    )
