"""The target over whole batches of sequences, dense, for writing data and for features.

The engine runs the same weights over a paged cache; here sequences are rectangles, so keys and values are
plain tensors. Linear layers, norms, rotation and their order are those of ``adaverify_smollm2.model``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional

from adaverify_smollm2.config import LlamaConfig
from adaverify_smollm2.gguf_file import GgufFile
from adaverify_smollm2.model import LayerWeights, LlamaWeights
from adaverify_smollm2.rope import rotary_table, rotate
from adaverify_smollm2.weights import read_weights


@dataclass(frozen=True, slots=True)
class TargetPass:
    """What training reads of one pass.

    Attributes:
        features: [B, T, layers * hidden], residual stream after the feature layers.
        keys, values: target layer -> [B, T, kv_heads, head_dim], positions encoded.
        hidden: [B, T, hidden], after the last norm.
    """

    features: torch.Tensor
    keys: dict[int, torch.Tensor]
    values: dict[int, torch.Tensor]
    hidden: torch.Tensor


class DenseTarget:
    """The frozen target.

    Args:
        config: its sizes.
        weights: its weights, with dense projections.
        positions: longest sequence.
    """

    def __init__(self, config: LlamaConfig, weights: LlamaWeights, positions: int) -> None:
        self.config = config
        self.weights = weights
        self.device = weights.embedding.device
        self.turns = rotary_table(positions, config.head_dim, config.rope_base, self.device)

    @classmethod
    def load(cls, path: Path, device: torch.device, dtype: torch.dtype, positions: int) -> DenseTarget:
        """Read the GGUF file ``path``."""
        file = GgufFile(path)
        config = LlamaConfig.read(file)
        return cls(config, read_weights(file, config, device, dtype, packed=False), positions)

    @torch.no_grad()
    def run(
        self, tokens: torch.Tensor, feature_layers: tuple[int, ...], cross_layers: tuple[int, ...]
    ) -> TargetPass:
        """Return the pass over ``tokens`` int64 [B, T]; feature layers count from 1, cross layers from 0."""
        config, weights = self.config, self.weights
        hidden = functional.embedding(tokens, weights.embedding)
        turns = self.turns[: tokens.shape[1]]
        features, keys, values = [], {}, {}
        for index, layer in enumerate(weights.layers):
            query, key, value = self.project(layer, hidden, turns)
            if index in cross_layers:
                keys[index], values[index] = key, value
            group = config.heads // config.kv_heads
            mixed = functional.scaled_dot_product_attention(
                query.transpose(1, 2),
                key.repeat_interleave(group, dim=2).transpose(1, 2),
                value.repeat_interleave(group, dim=2).transpose(1, 2),
                is_causal=True,
            )
            hidden = self.finish(layer, hidden, mixed.transpose(1, 2).flatten(2))
            if index + 1 in feature_layers:
                features.append(hidden)
        return TargetPass(torch.cat(features, dim=-1), keys, values, self.norm(hidden, weights.last_norm))

    def project(
        self, layer: LayerWeights, hidden: torch.Tensor, turns: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return query, key and value [..., heads, head_dim] of one layer, positions encoded."""
        config = self.config
        turned = config.heads + config.kv_heads
        mixed = layer.query_key_value(self.norm(hidden, layer.attention_norm))
        mixed = mixed.view(*hidden.shape[:-1], turned + config.kv_heads, config.head_dim)
        rotated = rotate(mixed[..., :turned, :].contiguous(), turns)
        return rotated[..., : config.heads, :], rotated[..., config.heads :, :], mixed[..., turned:, :]

    def finish(self, layer: LayerWeights, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, from its input and its attention [..., heads * head_dim]."""
        hidden = hidden + layer.attention_out(attended)
        gate, up = layer.gate_up(self.norm(hidden, layer.feed_forward_norm)).chunk(2, dim=-1)
        return hidden + layer.down(functional.silu(gate) * up)

    def norm(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the root-mean-square norm of ``rows``."""
        return functional.rms_norm(rows, weight.shape, weight, self.config.norm_eps)
