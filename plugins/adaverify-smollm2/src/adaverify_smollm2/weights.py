"""Turn the tensors of a GGUF file into the fused weights of the decoder."""

from __future__ import annotations

import numpy as np
import torch

from adaverify_contracts import ModelFileError
from adaverify_smollm2.config import LlamaConfig
from adaverify_smollm2.gguf_file import GgufFile
from adaverify_smollm2.model import LayerWeights, LlamaWeights
from adaverify_smollm2.projection import make_projection, packing_refusal

_EMBEDDING = "token_embd.weight"
_HEAD = "output.weight"


def read_weights(
    file: GgufFile,
    config: LlamaConfig,
    device: torch.device,
    dtype: torch.dtype,
    *,
    packed: bool | None = None,
) -> LlamaWeights:
    """Dequantise every tensor to float32, round to ``dtype`` and move to ``device``.

    The query, key and value weights are fused, and gate with up: a layer runs four products instead of seven.
    A file without an output weight ties it to the embedding. ``packed`` chooses the projections; None packs
    wherever ``packing_refusal`` finds no reason not to.

    Raises:
        ModelFileError: a tensor is missing, has another shape, or is one this decoder does not know.
    """
    pack = packing_refusal(device, dtype) is None if packed is None else packed

    def load(*names: str, shape: tuple[int, ...]) -> torch.Tensor:
        parts = [file.tensor(name, shape) for name in names]
        return torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts)).to(device, dtype)

    def layer(index: int) -> LayerWeights:
        stem = f"blk.{index}."
        hidden, inner = config.hidden, config.intermediate
        query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
        mixed = torch.cat(
            [
                load(stem + "attn_q.weight", shape=(query, hidden)),
                load(stem + "attn_k.weight", stem + "attn_v.weight", shape=(key, hidden)),
            ]
        )
        gate_up = load(stem + "ffn_gate.weight", stem + "ffn_up.weight", shape=(inner, hidden))
        return LayerWeights(
            attention_norm=load(stem + "attn_norm.weight", shape=(hidden,)),
            query_key_value=make_projection(mixed, packed=pack),
            attention_out=make_projection(
                load(stem + "attn_output.weight", shape=(hidden, query)), packed=pack
            ),
            feed_forward_norm=load(stem + "ffn_norm.weight", shape=(hidden,)),
            gate_up=make_projection(gate_up, packed=pack),
            down=make_projection(load(stem + "ffn_down.weight", shape=(hidden, inner)), packed=pack),
        )

    table = (config.vocabulary, config.hidden)
    embedding = load(_EMBEDDING, shape=table)
    head = load(_HEAD, shape=table) if file.has_tensor(_HEAD) else embedding
    weights = LlamaWeights(
        embedding=embedding,
        layers=tuple(layer(index) for index in range(config.layers)),
        last_norm=load("output_norm.weight", shape=(config.hidden,)),
        head=make_projection(head, packed=pack),
    )
    if left := file.untaken():
        raise ModelFileError(
            "the model file holds tensors this decoder would ignore",
            arrived=left[:8],
            allowed="the tensors of a plain llama-architecture model, without biases or scaled frequencies",
            remedy="pass the GGUF of SmolLM2 or of another plain llama-architecture model",
        )
    return weights
