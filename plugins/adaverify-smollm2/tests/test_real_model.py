"""The real SmolLM2-135M-Instruct. One download of 93 MB into the user's cache on first use."""

from __future__ import annotations

import gguf
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import ModelOptions
from adaverify_smollm2 import SMOLLM2_135M, fetch_model_file, load_smollm2
from adaverify_smollm2.checksum import stamp_path
from adaverify_smollm2.source import GEOMETRY

# The first test may download 93 MB.
pytestmark = [pytest.mark.network, pytest.mark.timeout(600)]

PARAGRAPH = (
    "The river rises in the hills to the north of the town and flows south for about forty miles before it "
    "reaches the sea. In spring, when the snow melts, the water is high and fast, and the old stone bridge "
    "is closed to traffic. In summer it is shallow enough for children to wade across, and families come "
    "from the city to have picnics on its banks. Most of the people who live in the valley work on small "
    "farms, where they grow apples, potatoes and wheat."
)
PROMPT = "The capital of France is"
# From the independent decoder of conftest.py in float32 on the dequantised file, whole sequence each time;
# the smallest lead of a first choice over the second is 0.145.
CONTINUATION = [7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33, 40, 29, 32, 33]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def loaded(real_path):
    return load_smollm2(ModelOptions(dtype="float32", cache_dir=real_path.parent, offline=True))


def greedy(model, prompt, count, attend):
    tokens, out, start = list(prompt), [], 0
    while len(out) < count:
        positions = torch.arange(start, start + len(tokens))
        hidden = model.forward(torch.tensor(tokens), positions, attend)
        start += len(tokens)
        tokens = [int(model.logits(hidden[-1:]).argmax())]
        out += tokens
        if tokens[0] in model.geometry.stop_tokens:
            break
    return out


def test_geometry_is_the_published_one(loaded):
    """Sizes as the model card has them."""
    geometry = loaded.model.geometry
    assert (geometry.layers, geometry.hidden, geometry.heads, geometry.kv_heads) == (30, 576, 9, 3)
    assert (geometry.head_dim, geometry.vocabulary, geometry.max_model_len) == (64, 49152, 8192)
    assert geometry.stop_tokens == (0, 2)
    assert geometry == GEOMETRY, "what the descriptor declares is what the file holds"


def test_second_fetch_reads_the_stamp_only(real_path):
    """No pip and no hash: microseconds instead of a second."""
    assert stamp_path(real_path).exists()
    calls = []
    options = ModelOptions(
        cache_dir=real_path.parent, offline=True, progress=lambda *point: calls.append(point)
    )
    assert fetch_model_file(SMOLLM2_135M, options) == real_path
    assert calls == []


def test_greedy_continuation_is_the_pinned_one(loaded, dense_attend):
    """' Paris.' first; the ids come from another implementation. The test below takes all of them at once."""
    ids = loaded.tokenizer.encode(PROMPT)
    out = greedy(loaded.model, ids, 6, dense_attend())
    assert out == CONTINUATION[:6]
    assert loaded.tokenizer.decode(out).startswith(" Paris.")


def test_logits_match_the_independent_decoder(
    loaded, real_path, tiny_model, dense_attend, independent_logits, undo_interleave
):
    """All 30 layers on a real prompt, float32 on both sides."""
    sizes = tiny_model(layers=0, hidden=576, heads=9, kv_heads=3, head_dim=64, intermediate=1536)
    sizes.layers, sizes.rope_base = 30, 100000.0
    held = {}
    for tensor in gguf.GGUFReader(real_path).tensors:
        name = tensor.name.removesuffix(".weight")
        values = gguf.dequantize(tensor.data, tensor.tensor_type).copy()
        heads = {"attn_q": 9, "attn_k": 3}.get(name.rpartition(".")[2])
        held[name] = values if heads is None else undo_interleave(values, heads)
    ids = loaded.tokenizer.encode(PROMPT) + CONTINUATION
    wanted = independent_logits(held, sizes, ids, torch.float32)
    hidden = loaded.model.forward(torch.tensor(ids), torch.arange(len(ids)), dense_attend())
    # Logits reach 30; 30 layers of float32 rounding in two orders of summation.
    torch.testing.assert_close(loaded.model.logits(hidden), wanted, rtol=0, atol=2e-3)
    for found in (wanted, loaded.model.logits(hidden)):
        assert found.argmax(-1)[-len(CONTINUATION) - 1 : -1].tolist() == CONTINUATION


def test_perplexity_of_plain_english_is_sane(loaded, dense_attend):
    """A wrong rotary layout or norm gives hundreds."""
    ids = torch.tensor(loaded.tokenizer.encode(PARAGRAPH))
    hidden = loaded.model.forward(ids, torch.arange(len(ids)), dense_attend())
    loss = torch.nn.functional.cross_entropy(loaded.model.logits(hidden[:-1]), ids[1:])
    assert 3.0 < loss.exp().item() < 25.0


def test_chat_answers_and_ends_its_turn(loaded, dense_attend):
    """The template, its markers and the stop token work together."""
    out = greedy(loaded.model, loaded.tokenizer.chat(QUESTION), 40, dense_attend())
    assert "Paris" in loaded.tokenizer.decode(out)
    assert out[-1] in loaded.model.geometry.stop_tokens


def test_verifying_at_once_equals_one_by_one(loaded, dense_attend):
    """Bit for bit in float32: 8 tokens in one call or in eight."""
    if loaded.model.projection_kind != "packed":
        pytest.skip("plain float32 products depend on the number of rows")
    ids = loaded.tokenizer.encode(PARAGRAPH)[:8]
    together = loaded.model.forward(torch.tensor(ids), torch.arange(8), dense_attend())
    attend = dense_attend()
    alone = [loaded.model.forward(torch.tensor([t]), torch.tensor([p]), attend) for p, t in enumerate(ids)]
    assert torch.equal(together, torch.cat(alone))


def test_known_splits(loaded):
    """Digits one by one, a leading space inside the word, marker only in a chat."""
    tokenizer = loaded.tokenizer
    assert len(tokenizer.encode("2024")) == 4
    assert tokenizer.encode(PROMPT) == [504, 3575, 282, 4649, 314]
    assert tokenizer.chat(QUESTION)[0] == 1
    assert 2 not in tokenizer.encode("<|im_end|>")


# Bytes the real vocabulary lacks, as far as text can hold them (see SmolTokenizer).
MISSING = "\x04\x06\x13\x14\x16\x1d"
KNOWN_TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters=MISSING).filter(
        lambda c: not 0x40000 <= ord(c) < 0xC0000
    ),
    max_size=60,
)


@given(text=KNOWN_TEXT)
@settings(max_examples=100, deadline=None)
def test_text_comes_back(loaded, text):
    """Every text the vocabulary can spell."""
    assert loaded.tokenizer.decode(loaded.tokenizer.encode(text)) == text


def test_bytes_outside_the_vocabulary_are_dropped(loaded):
    """The documented loss, and no more."""
    assert loaded.tokenizer.decode(loaded.tokenizer.encode(f"a{MISSING}b")) == "ab"
