"""The decoder: llama architecture with grouped-query attention left to the engine."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from adaverify_contracts import Attend, ModelGeometry
from adaverify_smollm2.config import LlamaConfig
from adaverify_smollm2.layer_ops import choose_layer_ops
from adaverify_smollm2.projection import Projection
from adaverify_smollm2.rope import DRAFT_ROOM, rotary_table


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer.

    Attributes:
        attention_norm: [hidden].
        query_key_value: projection hidden -> (heads + 2 * kv_heads) * head_dim, in that order.
        attention_out: projection heads * head_dim -> hidden.
        feed_forward_norm: [hidden].
        gate_up: projection hidden -> 2 * intermediate, gate first.
        down: projection intermediate -> hidden.
    """

    attention_norm: torch.Tensor
    query_key_value: Projection
    attention_out: Projection
    feed_forward_norm: torch.Tensor
    gate_up: Projection
    down: Projection


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """All weights: embedding [vocabulary, hidden], layers, last norm [hidden], head hidden -> vocabulary."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    last_norm: torch.Tensor
    head: Projection


class LlamaModel:
    """A llama-architecture target model (contract ``TappedModel``). It holds weights and no KV.

    Args:
        config: sizes and constants.
        weights: weights of one dtype on one device.
        geometry: what the engine is told.
    """

    def __init__(self, config: LlamaConfig, weights: LlamaWeights, geometry: ModelGeometry) -> None:
        self._config = config
        self._weights = weights
        self._geometry = geometry
        turns = rotary_table(
            config.context + DRAFT_ROOM, config.head_dim, config.rope_base, weights.embedding.device
        )
        self._ops = choose_layer_ops(turns, config.norm_eps)
        norms = [layer.attention_norm for layer in weights.layers]
        # The norm behind each layer: the next one's, and the last.
        self._next_norms = (*norms[1:], weights.last_norm)

    @property
    def geometry(self) -> ModelGeometry:
        """Sizes of this model."""
        return self._geometry

    @property
    def projection_kind(self) -> str:
        """``packed`` or ``dense``: which linear layers run."""
        return self._weights.head.kind

    @property
    def layer_ops_kind(self) -> str:
        """``fused`` or ``plain``: which operations run between them."""
        return self._ops.kind

    @torch.inference_mode()
    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Return final hidden states [T, hidden], in the model's dtype, after the last norm.

        Args:
            tokens: int64 [T] on the model's device, 0 <= token < vocabulary.
            positions: int64 [T]; at most 256 past the trained context, for drafts at its end.
            attend: the engine's attention, called once per layer in order.

        In float32 on a CPU with packed projections, a row's result does not depend on the other rows of the
        call as long as ``attend`` keeps to that too.
        """
        return self.forward_tapped(tokens, positions, attend, ())[0]

    @torch.inference_mode()
    def forward_tapped(
        self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend, taps: tuple[int, ...]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what ``forward`` returns, and features [T, len(taps) * hidden], in the model's dtype.

        Args:
            tokens: int64 [T], as for ``forward``.
            positions: int64 [T], as for ``forward``.
            attend: the engine's attention.
            taps: layers, counted from 1, whose outputs (the residual stream) become features.
        """
        ops, weights = self._ops, self._weights
        located = ops.located(positions)
        hidden, tapped = functional.embedding(tokens, weights.embedding), []
        normed = ops.norm(hidden, weights.layers[0].attention_norm)
        for index, (layer, next_norm) in enumerate(zip(weights.layers, self._next_norms, strict=True)):
            attended = self._attention(index, layer, normed, located, attend)
            hidden, normed = ops.join(hidden, attended, layer.feed_forward_norm)
            hidden, normed = ops.join(hidden, layer.down(ops.gate(layer.gate_up(normed))), next_norm)
            if index + 1 in taps:
                tapped.append(hidden)
        features = torch.cat(tapped, dim=1) if tapped else hidden[:, :0]
        return normed, features

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 logits [T, vocabulary]; in bfloat16 they carry that dtype's rounding."""
        return self._weights.head(hidden).float()

    def _attention(
        self, index: int, layer: LayerWeights, rows: torch.Tensor, located: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        config = self._config
        turned = config.heads + config.kv_heads
        mixed = layer.query_key_value(rows).view(rows.shape[0], turned + config.kv_heads, config.head_dim)
        value = mixed[:, turned:]
        query, key = self._ops.turn(mixed, located, turned).split_with_sizes(
            (config.heads, config.kv_heads), dim=1
        )
        attended = attend(index, query, key, value)
        return layer.attention_out(attended.reshape(rows.shape[0], config.heads * config.head_dim))
