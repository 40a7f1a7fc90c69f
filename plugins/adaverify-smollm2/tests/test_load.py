"""Loading files: whole, damaged, of another kind, or with something missing."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from adaverify_contracts import ModelFileError, ModelOptions, TargetModel, Tokenizer
from adaverify_smollm2 import GgufFile, LlamaConfig, load_model_file

OPTIONS = ModelOptions(dtype="float32")


def load(path):
    return load_model_file(path, OPTIONS, name="tiny")


def test_whole_file_loads_with_its_geometry(tiny_path):
    """Every size comes from the file."""
    loaded = load(tiny_path)
    geometry = loaded.model.geometry
    assert isinstance(loaded.model, TargetModel)
    assert isinstance(loaded.tokenizer, Tokenizer)
    assert (geometry.layers, geometry.hidden, geometry.heads, geometry.kv_heads) == (2, 64, 4, 2)
    assert (geometry.head_dim, geometry.vocabulary, geometry.max_model_len) == (16, 265, 64)
    assert geometry.stop_tokens == (0, 2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_have_the_dtype_asked_for(tiny_path, dense_attend, dtype):
    """Hidden states in the model's dtype, logits always float32."""
    model = load_model_file(tiny_path, ModelOptions(dtype=dtype), name="tiny").model
    hidden = model.forward(torch.tensor([5, 6]), torch.arange(2), dense_attend())
    assert hidden.dtype == getattr(torch, dtype)
    assert model.logits(hidden).dtype == torch.float32


KEYS = [
    "llama.block_count",
    "llama.context_length",
    "llama.embedding_length",
    "llama.feed_forward_length",
    "llama.attention.head_count",
    "llama.attention.head_count_kv",
    "llama.rope.dimension_count",
    "llama.rope.freq_base",
    "llama.attention.layer_norm_rms_epsilon",
    "tokenizer.ggml.model",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.chat_template",
]


@pytest.mark.parametrize("key", KEYS)
def test_missing_key_is_named(tiny_model, tmp_path, key):
    """No key has a default: a guess would run and be wrong."""
    with pytest.raises(ModelFileError, match=f"lacks the key {key}"):
        load(tiny_model(drop_keys=(key,)).write(tmp_path / "m.gguf"))


@pytest.mark.parametrize(
    "name", ["token_embd", "output_norm", "blk.0.attn_q", "blk.1.attn_v", "blk.1.ffn_down"]
)
def test_missing_tensor_is_named(tiny_model, tmp_path, name):
    """A layer without one of its weights does not load."""
    with pytest.raises(ModelFileError, match=f"lacks the tensor {name}.weight"):
        load(tiny_model(drop_tensors=(name + ".weight",)).write(tmp_path / "m.gguf"))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"llama.attention.head_count_kv": 3}, "kv_heads does not divide heads"),
        ({"llama.attention.head_count": 5}, "heads does not divide hidden"),
        ({"llama.rope.dimension_count": 8}, "part of the head only"),
        ({"llama.rope.scaling.type": "yarn"}, "frequencies are scaled"),
        ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "a finite number above 0"),
        ({"llama.rope.freq_base": 10000}, "a finite number above 0"),
        ({"llama.block_count": 0}, "an integer >= 1"),
        ({"llama.block_count": "two"}, "an integer >= 1"),
        ({"llama.block_count": 3}, "lacks the tensor blk.2"),
        ({"llama.block_count": 1}, "would ignore"),
        ({"llama.feed_forward_length": 97}, "the shape"),
        ({"tokenizer.ggml.model": "llama"}, "does not build"),
        ({"tokenizer.ggml.pre": "default"}, "does not build"),
        ({"tokenizer.ggml.tokens": "none"}, "an array of str"),
        ({"tokenizer.ggml.token_type": [3, 3, 3]}, "contradicts itself"),
        ({"tokenizer.ggml.merges": ["h nowhere"]}, "do not fit its vocabulary"),
        ({"tokenizer.ggml.eos_token_id": 4000}, "outside its vocabulary"),
        ({"tokenizer.chat_template": "{% for %}"}, "does not compile"),
    ],
)
def test_contradicting_metadata_is_refused(tiny_model, tmp_path, keys, said):
    """Sizes are checked against one another and against the tensors."""
    with pytest.raises(ModelFileError, match=said):
        load(tiny_model(keys=keys).write(tmp_path / "m.gguf"))


def test_another_architecture_is_refused(tiny_model, tmp_path):
    """A file of another family is not tried."""
    with pytest.raises(ModelFileError, match="architecture") as caught:
        load(tiny_model(architecture="qwen2").write(tmp_path / "m.gguf"))
    assert caught.value.arrived == "qwen2"


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "rope_freqs.weight"])
def test_tensor_that_would_be_ignored_is_refused(tiny_model, tmp_path, name):
    """A bias or scaled frequencies left unread would give fluent nonsense."""
    with pytest.raises(ModelFileError, match="would ignore") as caught:
        load(tiny_model(extra_tensors={name: np.ones(64, np.float32)}).write(tmp_path / "m.gguf"))
    assert caught.value.arrived == [name]


def test_absent_file_is_a_typed_error(tmp_path):
    """The path is in the message."""
    with pytest.raises(ModelFileError, match="cannot be opened") as caught:
        load(tmp_path / "nowhere.gguf")
    assert "nowhere" in caught.value.arrived


@pytest.mark.parametrize("content", [b"", b"GG", b"not a model " * 99], ids=["empty", "two bytes", "other"])
def test_rubbish_is_a_typed_error(tmp_path, content):
    """Empty files cannot even be mapped."""
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="damaged or not GGUF"):
        load(path)


@pytest.mark.parametrize("share", [0.0005, 0.01, 0.05, 0.3, 0.7, 0.999])
def test_truncated_file_is_a_typed_error(tiny_path, tmp_path, share):
    """Cut in the header, among the strings, among the tensor names, or in the data."""
    data = tiny_path.read_bytes()
    path = tmp_path / "m.gguf"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ModelFileError, match="damaged or not GGUF"):
        load(path)


@pytest.mark.parametrize("offset", [0, 4, 8, 16, 24, 60])
def test_corrupt_header_is_a_typed_error(tiny_path, tmp_path, offset):
    """Magic, version, counts and lengths overwritten with all ones."""
    data = bytearray(tiny_path.read_bytes())
    data[offset : offset + 4] = b"\xff" * 4
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelFileError):
        load(path)


def test_unquantised_and_quantised_tensors_read_alike(tiny_model, tmp_path):
    """Q8_0 keeps 8 bits of a block's largest value, so that values agree within one part in 127 of it."""
    exact = tiny_model()
    coarse = tiny_model(quantise=gguf.GGMLQuantizationType.Q8_0).write(tmp_path / "q.gguf")
    read = GgufFile(coarse).tensor("blk.0.ffn_up.weight", (96, 64))
    wanted = exact.weights["blk.0.ffn_up"]
    assert read.dtype == np.float32
    assert np.abs(read - wanted).max() <= np.abs(wanted).max() / 127
    assert not np.array_equal(read, wanted)


def test_key_length_overrides_the_quotient(tiny_model, tmp_path):
    """Heads may be wider than hidden / heads when the file says so."""
    wide = tiny_model(head_dim=32, keys={"llama.attention.key_length": 32}).write(tmp_path / "m.gguf")
    assert LlamaConfig.read(GgufFile(wide)).head_dim == 32
    assert load(wide).model.geometry.head_dim == 32
