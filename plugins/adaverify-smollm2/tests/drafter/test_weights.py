"""Weights on disk: the format, int8, damage, and a file of another shape."""

from __future__ import annotations

import json

import pytest
import torch

from adaverify_contracts import ModelFileError
from adaverify_smollm2.drafter import load_block_drafter, weights_present
from adaverify_smollm2.drafter.quantise import quantise, restore
from adaverify_smollm2.drafter.tensor_file import read_tensors, write_tensors
from adaverify_smollm2.drafter.weights import save_block_drafter


def test_tensors_come_back_bit_for_bit(tmp_path):
    """Every dtype, an empty and a scalar tensor, and the metadata."""
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.randn(7).to(torch.bfloat16),
        "c": torch.arange(-5, 5, dtype=torch.int8).view(2, 5),
        "d": torch.arange(3, dtype=torch.int32),
        "e": torch.empty(0, 4),
        "f": torch.tensor(2.5),
    }
    write_tensors(tmp_path / "x.safetensors", tensors, {"config": "text"})
    found, metadata = read_tensors(tmp_path / "x.safetensors")
    assert metadata == {"config": "text"}
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)


def test_the_file_is_what_the_format_says(tmp_path):
    """Length, JSON header padded to eight bytes, data: read here by hand."""
    write_tensors(tmp_path / "x.safetensors", {"w": torch.tensor([[1.0, 2.0]])}, {"format": "pt"})
    data = (tmp_path / "x.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    assert header["w"] == {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]}
    assert data[8 + length :] == bytes.fromhex("0000803f00000040")


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "header"])
def test_damaged_files_are_refused(tmp_path, damage):
    """Whatever is wrong with it, the error names the file."""
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"w": torch.randn(4, 4)}, {})
    data = path.read_bytes()
    path.write_bytes(
        {"cut": data[:-3], "empty": b"", "text": b"hello, world", "header": data.replace(b"F32", b"F99")}[
            damage
        ]
    )
    with pytest.raises(ModelFileError, match="cannot be read") as caught:
        read_tensors(path)
    assert "x.safetensors" in str(caught.value)


def test_int8_is_within_half_a_step():
    """No value moves by more than half of its row's scale; zeros, vectors and small matrices are kept."""
    weight = torch.randn(80, 64, generator=torch.Generator().manual_seed(1))
    weight[3] = 0
    tensors = {"w": weight, "v": torch.randn(9000), "small": torch.randn(2, 100)}
    back = restore(quantise(tensors))
    scale = weight.abs().amax(1, keepdim=True) / 127
    assert ((back["w"] - weight).abs() <= scale / 2 + 1e-9).all()
    assert not torch.equal(back["w"], weight)
    assert (back["w"][3] == 0).all()
    assert torch.equal(back["v"], tensors["v"]) and torch.equal(back["small"], tensors["small"])


def test_an_exported_drafter_is_the_rounded_one(tmp_path, tiny_drafter):
    """Export and load equal rounding in memory, and a second export changes nothing."""
    from drafter_training.evaluate import rounded

    sizes = save_block_drafter(tiny_drafter, tmp_path)
    assert sizes.keys() == {"backbone.safetensors", "head.safetensors", "table.safetensors"}
    assert weights_present(tmp_path)
    loaded = load_block_drafter(torch.device("cpu"), torch.float32, tmp_path)
    assert loaded.config == tiny_drafter.config
    expected = rounded(tiny_drafter).state_dict()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    again = tmp_path / "again"
    save_block_drafter(loaded, again)
    reloaded = load_block_drafter(torch.device("cpu"), torch.float32, again)
    for name, tensor in reloaded.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-6, rtol=1e-5)


def test_a_smaller_vocabulary_proposes_the_same_among_its_ids(tiny_drafter):
    """Trimming keeps the first ids and their logits."""
    from drafter_training.evaluate import reduced

    small = reduced(tiny_drafter, 50)
    hidden = torch.randn(6, 4, 64, generator=torch.Generator().manual_seed(4))
    whole = tiny_drafter.head.prepare(hidden).base
    torch.testing.assert_close(small.head.prepare(hidden).base, whole[..., :50])
    drafts, _ = small.decode(hidden, torch.arange(6))
    assert set(drafts.flatten().tolist()) <= set(tiny_drafter.draft_ids[:50].tolist())
    assert small.config.draft_vocabulary == 50


def test_absent_and_foreign_weights_are_refused(tmp_path, tiny_drafter):
    """No file: how to get them. Another shape: which tensor."""
    with pytest.raises(ModelFileError, match="has no weights"):
        load_block_drafter(torch.device("cpu"), torch.float32, tmp_path)
    save_block_drafter(tiny_drafter, tmp_path)
    tensors, metadata = read_tensors(tmp_path / "head.safetensors")
    del tensors["head.mix_block.weight"]
    write_tensors(tmp_path / "head.safetensors", tensors, metadata)
    with pytest.raises(ModelFileError, match="do not fit"):
        load_block_drafter(torch.device("cpu"), torch.float32, tmp_path)


def test_weights_that_are_not_finite_are_refused(tmp_path, tiny_drafter):
    """A file of the right size may still be damaged: its drafts would be of no use, in silence."""
    save_block_drafter(tiny_drafter, tmp_path)
    path = tmp_path / "head.safetensors"
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    data[start:] = b"\xff" * (len(data) - start)
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match="damaged"):
        load_block_drafter(torch.device("cpu"), torch.float32, tmp_path)
