"""Random weights, drawn on the device: no two layers share any, so no step reads one twice."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from adaverify_contracts import EngineError
from adaverify_engine.sparse_moe.sizes import SparseMoeSizes


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer, every matrix as [outputs, inputs].

    Attributes:
        mixed: hidden to query base, latent entry, index key and index weights.
        wide: query base to attention queries, then index queries.
        output_in: attention's result to ``output_rank``; output_out: from there to hidden.
        output_out: see output_in.
        gate: hidden to router logits, then gate and up of the shared expert.
        shared_down: shared expert to hidden.
        expert_up: [local, 2 x width, hidden]; expert_down: [local, hidden, width].
        expert_down: see expert_up.
    """

    mixed: torch.Tensor
    wide: torch.Tensor
    output_in: torch.Tensor
    output_out: torch.Tensor
    gate: torch.Tensor
    shared_down: torch.Tensor
    expert_up: torch.Tensor
    expert_down: torch.Tensor


@dataclass(frozen=True, slots=True)
class Weights:
    """Embedding [vocabulary, hidden], the layers, and the head [vocabulary, hidden]."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    head: torch.Tensor


def draw_weights(sizes: SparseMoeSizes, device: torch.device, dtype: torch.dtype, seed: int) -> Weights:
    """Draw every weight from a normal law with variance 1 / inputs, so that products keep their magnitude.

    Args:
        sizes: of the decoder.
        device: where they are drawn and stay.
        dtype: bfloat16 or float32.
        seed: of the draw; equal seeds give equal weights on one kind of device.

    Raises:
        EngineError: they do not fit the memory.
    """
    made = torch.Generator(device).manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device).normal_(0.0, shape[-1] ** -0.5, generator=made)

    def layer() -> LayerWeights:
        return LayerWeights(
            mixed=draw(sizes.mixed, sizes.hidden),
            wide=draw(sizes.wide, sizes.query_rank),
            output_in=draw(sizes.output_rank, sizes.heads * sizes.latent),
            output_out=draw(sizes.hidden, sizes.output_rank),
            gate=draw(sizes.experts + 2 * sizes.shared_width, sizes.hidden),
            shared_down=draw(sizes.hidden, sizes.shared_width),
            expert_up=draw(sizes.local_experts, 2 * sizes.expert_width, sizes.hidden),
            expert_down=draw(sizes.local_experts, sizes.hidden, sizes.expert_width),
        )

    try:
        # Embedded tokens have magnitude 1, as every normed vector has.
        embedding = torch.empty((sizes.vocabulary, sizes.hidden), dtype=dtype, device=device)
        embedding.normal_(0.0, 1.0, generator=made)
        return Weights(
            embedding, tuple(layer() for _ in range(sizes.layers)), draw(sizes.vocabulary, sizes.hidden)
        )
    except (RuntimeError, MemoryError) as error:
        raise EngineError(
            "the weights of the sparse decoder do not fit the memory",
            arrived=f"{sizes.parameters * dtype.itemsize / 1e9:.1f} GB on {device}",
            allowed="what the device can give",
            remedy="lower ADAVERIFY_SPARSE_MOE_LAYERS, or take SparseMoeSizes.tiny() on a CPU",
        ) from error
