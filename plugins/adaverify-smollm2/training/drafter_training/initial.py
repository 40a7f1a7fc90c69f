"""The drafter before training: as much of the target as fits."""

from __future__ import annotations

import torch

from adaverify_smollm2.drafter import BlockDrafterModel, DrafterConfig
from adaverify_smollm2.projection import Projection
from drafter_training.target import DenseTarget


def target_config(target: DenseTarget, draft_vocabulary: int, **sizes: object) -> DrafterConfig:
    """Return a configuration that fits ``target``; ``sizes`` replace the defaults."""
    config = target.config
    defaults: dict[str, object] = {
        "block": 7,
        "hidden": config.hidden,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate": config.intermediate,
        "table": 256,
        "rank": 128,
        "vocabulary": config.vocabulary,
        "draft_vocabulary": draft_vocabulary,
        "feature_layers": (10, 20, 30),
        "cross_layers": (17, 23, 28),
        "norm_eps": config.norm_eps,
        "rope_base": config.rope_base,
        "target": "smollm2-135m",
    }
    return DrafterConfig(**(defaults | sizes))  # type: ignore[arg-type]


@torch.no_grad()
def initial_drafter(
    target: DenseTarget, config: DrafterConfig, draft_ids: torch.Tensor, seed: int
) -> BlockDrafterModel:
    """Return a float32 drafter on the target's device.

    The token table holds the principal components of the target's embedding, the vocabulary rows are its
    output weight, and each layer's cross attention and feed-forward are those of the target layer whose cache
    it reads. What has no model in the target begins near zero.
    """
    generator = torch.Generator().manual_seed(seed)
    model = BlockDrafterModel(config, draft_ids.cpu(), positions=len(target.turns))
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and not name.startswith("slot_"):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[1] ** -0.5)
    model.slot_offset.copy_(torch.randn(model.slot_offset.shape, generator=generator) * 0.1)
    _tables(target, model)
    _entry(model)
    for layer, module in zip(config.cross_layers, model.layers, strict=True):
        _layer(target, layer, module)
    model.last_norm.weight.copy_(target.weights.last_norm)
    for linear in (model.head.markov, model.head.doubt_block, model.head.doubt_token, model.head.doubt_mix):
        linear.weight.zero_()
    model.head.doubt_peak.weight.copy_(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    return model.to(target.device)


def _tables(target: DenseTarget, model: BlockDrafterModel) -> None:
    embedding = target.weights.embedding.float().cpu()
    embedding = embedding / embedding.square().mean().sqrt()
    _, vectors = torch.linalg.eigh(embedding.t() @ embedding)
    basis = vectors[:, -model.config.table :]
    rows = embedding @ basis
    size = rows.square().mean().sqrt()
    model.table.weight.copy_(rows / size)
    model.token_in.weight.copy_(basis * size)
    head = _weight(target.weights.head, model.config.hidden, target)
    model.head.unembedding.weight.copy_(head[model.draft_ids])


def _entry(model: BlockDrafterModel) -> None:
    width, count = model.config.hidden, len(model.config.feature_layers)
    model.feature_in.weight.mul_(0.1)
    for index in range(count):
        block = model.feature_in.weight[:, index * width : (index + 1) * width]
        block.add_(torch.eye(width) * (index + 1) / count)


def _layer(target: DenseTarget, index: int, module: torch.nn.Module) -> None:
    source, config = target.weights.layers[index], target.config
    inner = config.heads * config.head_dim
    module.block_out.weight.zero_()
    module.block_norm.weight.copy_(source.attention_norm)
    module.cross_norm.weight.copy_(source.attention_norm)
    module.feed_forward_norm.weight.copy_(source.feed_forward_norm)
    mixed = _weight(source.query_key_value, config.hidden, target)
    module.cross_query.weight.copy_(mixed[:inner])
    module.cross_out.weight.copy_(_weight(source.attention_out, inner, target))
    module.gate_up.weight.copy_(_weight(source.gate_up, config.hidden, target))
    module.down.weight.copy_(_weight(source.down, config.intermediate, target))


def _weight(projection: Projection, width: int, target: DenseTarget) -> torch.Tensor:
    # A projection times the identity is its weight, whatever layout it keeps.
    eye = torch.eye(width, dtype=target.weights.embedding.dtype, device=target.device)
    return projection(eye).t().float().cpu()
