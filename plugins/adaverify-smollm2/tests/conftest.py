"""Fixtures: a tiny llama-architecture GGUF written on the spot, dense attention, an independent decoder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from adaverify_contracts import ModelOptions
from adaverify_smollm2 import SMOLLM2_135M, fetch_model_file

TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_alphabet() -> list[str]:
    """The 256 printable stand-ins of byte-level BPE, in byte order (GPT-2's table, written out again)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


@dataclass
class Tiny:
    """A two-layer model as the training code lays it out: rotary halves, seven weights a layer."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    intermediate: int = 96
    context: int = 64
    eps: float = 1e-5
    rope_base: float = 10000.0
    tied: bool = True
    quantise: gguf.GGMLQuantizationType | None = None
    architecture: str = "llama"
    tokens: list[str] = field(default_factory=list)
    merges: list[str] = field(default_factory=list)
    control: int = 3
    keys: dict[str, object] = field(default_factory=dict)
    drop_keys: tuple[str, ...] = ()
    drop_tensors: tuple[str, ...] = ()
    extra_tensors: dict[str, np.ndarray] = field(default_factory=dict)
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.tokens:
            words = ["he", "ll", "hell", "hello", "\u0120hello", "12"]
            self.merges = ["h e", "l l", "he ll", "hell o", "\u0120 hello", "1 2"]
            self.tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_alphabet(), *words]
        random = np.random.default_rng(7)
        for name, shape in self.shapes().items():
            scale = 0.1 if "norm" in name else shape[-1] ** -0.5
            values = random.standard_normal(shape) * scale + ("norm" in name)
            self.weights[name] = values.astype(np.float32)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"token_embd": (len(self.tokens), self.hidden)}
        for index in range(self.layers):
            shapes |= {
                f"blk.{index}.attn_norm": (self.hidden,),
                f"blk.{index}.attn_q": (query, self.hidden),
                f"blk.{index}.attn_k": (key, self.hidden),
                f"blk.{index}.attn_v": (key, self.hidden),
                f"blk.{index}.attn_output": (self.hidden, query),
                f"blk.{index}.ffn_norm": (self.hidden,),
                f"blk.{index}.ffn_gate": (self.intermediate, self.hidden),
                f"blk.{index}.ffn_up": (self.intermediate, self.hidden),
                f"blk.{index}.ffn_down": (self.hidden, self.intermediate),
            }
        shapes["output_norm"] = (self.hidden,)
        if not self.tied:
            shapes["output"] = (len(self.tokens), self.hidden)
        return shapes

    def metadata(self) -> dict[str, object]:
        found: dict[str, object] = {
            "llama.block_count": self.layers,
            "llama.context_length": self.context,
            "llama.embedding_length": self.hidden,
            "llama.feed_forward_length": self.intermediate,
            "llama.attention.head_count": self.heads,
            "llama.attention.head_count_kv": self.kv_heads,
            "llama.rope.dimension_count": self.head_dim,
            "llama.rope.freq_base": self.rope_base,
            "llama.attention.layer_norm_rms_epsilon": self.eps,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": self.tokens,
            "tokenizer.ggml.token_type": [3] * self.control + [1] * (len(self.tokens) - self.control),
            "tokenizer.ggml.merges": self.merges,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.chat_template": TEMPLATE,
        }
        found |= self.keys
        return {key: value for key, value in found.items() if key not in self.drop_keys}

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        for key, value in self.metadata().items():
            add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
            add.get(type(value), writer.add_array)(key, value)
        for name, values in self.weights.items():
            if name + ".weight" not in self.drop_tensors:
                self._add(writer, name + ".weight", interleave(name, values, self))
        for name, values in self.extra_tensors.items():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _add(self, writer: gguf.GGUFWriter, name: str, values: np.ndarray) -> None:
        if self.quantise is None or values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quantize(values, self.quantise), raw_dtype=self.quantise)


def interleave(name: str, values: np.ndarray, sizes: Tiny) -> np.ndarray:
    """Permute a query or key weight as llama.cpp's converter does: a rotated pair becomes neighbours."""
    heads = {"attn_q": sizes.heads, "attn_k": sizes.kv_heads}.get(name.rpartition(".")[2])
    if heads is None:
        return values
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, values.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def deinterleave(values: np.ndarray, heads: int) -> np.ndarray:
    """Undo ``interleave`` for one weight."""
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, values.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))


def plain_logits(
    weights: dict[str, np.ndarray], sizes: Tiny, tokens: list[int], dtype: torch.dtype
) -> torch.Tensor:
    """Decode independently: whole sequence, rotary halves, explicit softmax; nothing of the package."""
    w = {name: torch.from_numpy(values).to(dtype) for name, values in weights.items()}

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + sizes.eps) * weight

    count = len(tokens)
    exponents = torch.arange(0, sizes.head_dim, 2, dtype=torch.float64) / sizes.head_dim
    angles = torch.outer(torch.arange(count, dtype=torch.float64), sizes.rope_base**-exponents)
    cos = torch.cat([angles.cos()] * 2, -1).to(dtype)
    sin = torch.cat([angles.sin()] * 2, -1).to(dtype)

    def turn(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    def heads(x: torch.Tensor, number: int) -> torch.Tensor:
        return x.reshape(count, number, sizes.head_dim).transpose(0, 1)

    x = w["token_embd"][tokens]
    future = torch.ones(count, count, dtype=torch.bool).triu(1)
    for index in range(sizes.layers):
        layer = f"blk.{index}."
        rows = norm(x, w[layer + "attn_norm"])
        query = turn(heads(rows @ w[layer + "attn_q"].t(), sizes.heads))
        key = turn(heads(rows @ w[layer + "attn_k"].t(), sizes.kv_heads))
        value = heads(rows @ w[layer + "attn_v"].t(), sizes.kv_heads)
        group = sizes.heads // sizes.kv_heads
        scores = query @ key.repeat_interleave(group, 0).transpose(1, 2) * sizes.head_dim**-0.5
        mixed = scores.masked_fill(future, -torch.inf).softmax(-1) @ value.repeat_interleave(group, 0)
        x = x + mixed.transpose(0, 1).reshape(count, -1) @ w[layer + "attn_output"].t()
        rows = norm(x, w[layer + "ffn_norm"])
        gate = rows @ w[layer + "ffn_gate"].t()
        x = x + (gate * torch.sigmoid(gate) * (rows @ w[layer + "ffn_up"].t())) @ w[layer + "ffn_down"].t()
    return norm(x, w["output_norm"]) @ w.get("output", w["token_embd"]).t()


class DenseAttend:
    """Keep the keys and values of one sequence and attend causally, one query row at a time.

    Row by row, so that a row's result cannot depend on how many rows arrive together.
    """

    def __init__(self) -> None:
        self.keys: dict[int, torch.Tensor] = {}
        self.values: dict[int, torch.Tensor] = {}

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        before = self.keys[layer].shape[0] if layer in self.keys else 0
        if before:
            key = torch.cat([self.keys[layer], key])
            value = torch.cat([self.values[layer], value])
        self.keys[layer], self.values[layer] = key, value
        rows = [self._row(q, key[: before + i + 1], value[: before + i + 1]) for i, q in enumerate(query)]
        return torch.stack(rows) if rows else query

    @staticmethod
    def _row(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        group = query.shape[0] // key.shape[1]
        scores = (query.view(-1, group, 1, query.shape[1]) * key.transpose(0, 1).unsqueeze(1)).float().sum(-1)
        weight = (scores * query.shape[1] ** -0.5).softmax(-1).unsqueeze(-1)
        return (weight * value.transpose(0, 1).unsqueeze(1).float()).sum(-2).view(query.shape).to(query.dtype)


@pytest.fixture
def tiny_model() -> type[Tiny]:
    """The writer of tiny models."""
    return Tiny


@pytest.fixture
def dense_attend() -> type[DenseAttend]:
    """A dense causal attention."""
    return DenseAttend


@pytest.fixture(scope="session")
def independent_logits():
    """The independent decoder of this file."""
    return plain_logits


@pytest.fixture(scope="session")
def undo_interleave():
    """The inverse of the converter's permutation."""
    return deinterleave


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole tiny model in float32."""
    return Tiny().write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def real_path() -> Path:
    """The real model file in the user's cache, downloaded if need be."""
    return fetch_model_file(SMOLLM2_135M, ModelOptions())
