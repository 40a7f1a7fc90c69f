"""The tiny model: a real decoder, the same every time."""

import torch

from adaverify_contracts import ModelDescriptor, ModelOptions, TargetModel, Tokenizer
from adaverify_testing import TinyModel, tiny_model


def attend_causally(layer, query, key, value):
    key, value = (part.expand(-1, query.shape[1], -1).transpose(0, 1) for part in (key, value))
    out = torch.nn.functional.scaled_dot_product_attention(query.transpose(0, 1), key, value, is_causal=True)
    return out.transpose(0, 1)


def logits_of(model, tokens):
    ids = torch.tensor(tokens)
    return model.logits(model.forward(ids, torch.arange(len(ids)), attend_causally))


def test_it_is_what_the_contracts_ask_for():
    """The protocols hold, and a plugin registers it as it stands."""
    loaded = tiny_model()
    assert isinstance(loaded.model, TargetModel)
    assert isinstance(loaded.tokenizer, Tokenizer)
    assert ModelDescriptor("tiny", "two layers", tiny_model).load(ModelOptions(dtype="float32"))


def test_its_logits_are_causal_and_the_same_every_time():
    """A later token changes no earlier logit; the seed decides the weights."""
    one, same, other = TinyModel(), TinyModel(), TinyModel(seed=1)
    logits = logits_of(one, [5, 9, 2, 40])
    assert logits.shape == (4, 64)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, logits_of(same, [5, 9, 2, 40]))
    assert not torch.allclose(logits, logits_of(other, [5, 9, 2, 40]))
    torch.testing.assert_close(logits[:3], logits_of(one, [5, 9, 2]), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(logits[3], logits_of(one, [5, 9, 2, 41])[3])


def test_dtype_and_sizes_are_honoured():
    """In bfloat16 the hidden states are bfloat16, the logits float32."""
    model = tiny_model(
        ModelOptions(dtype="bfloat16"), vocabulary=20, max_model_len=32, stop_tokens=(7,)
    ).model
    assert (model.geometry.vocabulary, model.geometry.max_model_len) == (20, 32)
    assert model.geometry.stop_tokens == (7,)
    hidden = model.forward(torch.tensor([1, 2]), torch.tensor([0, 31]), attend_causally)
    assert hidden.dtype == torch.bfloat16
    assert model.logits(hidden).dtype == torch.float32


def test_the_tokenizer_takes_any_text():
    """Every character has an id in the vocabulary, whatever the alphabet."""
    tokenizer = tiny_model().tokenizer
    ids = tokenizer.encode("naïve 漢字\n")
    assert len(ids) == 9
    assert all(0 <= token < 64 for token in ids)
    assert len(tokenizer.decode(ids)) == 9
    assert tokenizer.encode("") == []
    assert tokenizer.chat([{"role": "user", "content": "a"}]) == tokenizer.encode("user: a\nassistant: ")


def test_features_are_the_residual_stream_after_a_layer():
    """The last tap is what the last norm reads; an earlier one is another, and nothing else changes."""
    from torch.nn.functional import rms_norm

    model, tokens = TinyModel(), torch.tensor([1, 2, 3])

    def attend(layer, query, key, value):
        return query

    hidden, features = model.forward_tapped(tokens, torch.arange(3), attend, (1, 2))
    first, last = features.chunk(2, dim=1)
    assert torch.equal(rms_norm(last, (32,)), hidden)
    assert torch.equal(hidden, model.forward(tokens, torch.arange(3), attend))
    assert not torch.equal(first, last)
