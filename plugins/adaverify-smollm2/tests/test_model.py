"""The decoder against an independent one."""

from __future__ import annotations

from dataclasses import replace

import gguf
import pytest
import torch

from adaverify_contracts import ModelOptions
from adaverify_smollm2 import GgufFile, LlamaConfig, load_model_file
from adaverify_smollm2.model import LlamaModel
from adaverify_smollm2.projection import packing_refusal
from adaverify_smollm2.weights import read_weights

TOKENS = [1, 7, 260, 19, 19, 264, 100, 2, 0, 55]
CPU = torch.device("cpu")


def load(path, dtype="float32"):
    return load_model_file(path, ModelOptions(dtype=dtype), name="tiny").model


def run(model, tokens, attend, start=0):
    return model.forward(
        torch.tensor(tokens, dtype=torch.int64), torch.arange(start, start + len(tokens)), attend
    )


@pytest.mark.parametrize("tied", [True, False])
def test_float32_logits_match_an_independent_decoder(
    tiny_model, tmp_path, dense_attend, independent_logits, tied
):
    """The other decoder works in float64, with rotary halves and unpermuted weights."""
    sizes = tiny_model(tied=tied)
    model = load(sizes.write(tmp_path / "m.gguf"))
    logits = model.logits(run(model, TOKENS, dense_attend()))
    wanted = independent_logits(sizes.weights, sizes, TOKENS, torch.float64)
    torch.testing.assert_close(logits.double(), wanted, rtol=1e-5, atol=1e-5)


def test_dense_projections_give_the_same(tiny_model, tmp_path, dense_attend, independent_logits):
    """The path of every device other than a CPU with oneDNN."""
    sizes = tiny_model()
    file = GgufFile(sizes.write(tmp_path / "m.gguf"))
    config = LlamaConfig.read(file)
    geometry = load(tmp_path / "m.gguf").geometry
    model = LlamaModel(config, read_weights(file, config, CPU, torch.float32, packed=False), geometry)
    assert model.projection_kind == "dense"
    logits = model.logits(run(model, TOKENS, dense_attend()))
    wanted = independent_logits(sizes.weights, sizes, TOKENS, torch.float64)
    torch.testing.assert_close(logits.double(), wanted, rtol=1e-5, atol=1e-5)


def test_bfloat16_follows_float32(tiny_path, dense_attend):
    """Two layers of bfloat16 rounding, relative to the spread of the logits."""
    models = [load(tiny_path, dtype) for dtype in ("float32", "bfloat16")]
    exact, rounded = (model.logits(run(model, TOKENS, dense_attend())) for model in models)
    assert ((exact - rounded).norm() / exact.norm()).item() < 0.03


def test_quantised_weights_follow_their_dequantised_values(
    tiny_model, tmp_path, dense_attend, independent_logits, undo_interleave
):
    """The independent decoder on the values the file really holds."""
    sizes = tiny_model(quantise=gguf.GGMLQuantizationType.Q8_0)
    path = sizes.write(tmp_path / "m.gguf")
    held = {}
    for tensor in gguf.GGUFReader(path).tensors:
        name = tensor.name.removesuffix(".weight")
        values = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(sizes.shapes()[name]).copy()
        heads = {"attn_q": sizes.heads, "attn_k": sizes.kv_heads}.get(name.rpartition(".")[2])
        held[name] = values if heads is None else undo_interleave(values, heads)
    model = load(path)
    wanted = independent_logits(held, sizes, TOKENS, torch.float64)
    torch.testing.assert_close(
        model.logits(run(model, TOKENS, dense_attend())).double(), wanted, rtol=1e-5, atol=1e-5
    )


def test_chunks_continue_one_another(tiny_path, dense_attend):
    """Prefill in pieces with their own positions gives what one call gives."""
    model = load(tiny_path)
    whole = run(model, TOKENS, dense_attend())
    attend = dense_attend()
    pieces = [
        run(model, TOKENS[:4], attend),
        run(model, TOKENS[4:5], attend, 4),
        run(model, TOKENS[5:], attend, 5),
    ]
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(
    packing_refusal(CPU, torch.float32) is not None, reason="float32 weights cannot be packed"
)
def test_float32_rows_do_not_depend_on_the_batch(tiny_path, dense_attend):
    """Bit for bit: verifying 10 tokens at once or one by one gives the same hidden states and logits."""
    model = load(tiny_path)
    together = run(model, TOKENS, dense_attend())
    attend = dense_attend()
    alone = torch.cat([run(model, [token], attend, place) for place, token in enumerate(TOKENS)])
    assert torch.equal(together, alone)
    assert torch.equal(model.logits(together), torch.cat([model.logits(row[None]) for row in together]))


def test_no_tokens_are_no_rows(tiny_path, dense_attend):
    """An empty step returns empty results of the right width."""
    model = load(tiny_path)
    hidden = run(model, [], dense_attend())
    assert hidden.shape == (0, 64)
    assert model.logits(hidden).shape == (0, 265)


def test_drafts_may_stand_past_the_last_position(tiny_path, dense_attend):
    """The last certain token stands at 63 of 64; K = 7 drafts follow it."""
    model = load(tiny_path)
    assert run(model, [5] * 8, dense_attend(), 63).isfinite().all()


def test_attend_gets_every_layer_in_order_with_rotated_heads(tiny_path, dense_attend):
    """Shapes of the contract: query [T, heads, head_dim], key and value [T, kv_heads, head_dim]."""
    calls = []

    class Watch(dense_attend):
        def __call__(self, layer, query, key, value):
            calls.append((layer, tuple(query.shape), tuple(key.shape), tuple(value.shape)))
            return super().__call__(layer, query, key, value)

    run(load(tiny_path), [4, 5, 6], Watch())
    assert calls == [(layer, (3, 4, 16), (3, 2, 16), (3, 2, 16)) for layer in (0, 1)]


def test_features_are_the_residual_stream_between_layers(tiny_path, dense_attend):
    """The last tap is what the last norm reads; an earlier one is the output of a model that ends there."""
    model = load_model_file(tiny_path, ModelOptions(dtype="float32"), name="tiny").model
    tokens, positions = torch.tensor([5, 9, 7, 40]), torch.arange(4)
    hidden, features = model.forward_tapped(tokens, positions, dense_attend(), (1, 2))
    assert torch.equal(hidden, model.forward(tokens, positions, dense_attend()))
    first, last = features.chunk(2, dim=1)
    assert torch.equal(model._ops.norm(last, model._weights.last_norm), hidden)
    short = LlamaModel(
        model._config, replace(model._weights, layers=model._weights.layers[:1]), model.geometry
    )
    ended, tapped = short.forward_tapped(tokens, positions, dense_attend(), (1,))
    assert torch.equal(tapped, first)
    assert torch.equal(short._ops.norm(first, model._weights.last_norm), ended)
