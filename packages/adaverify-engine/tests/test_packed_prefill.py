"""Chunks of many prompts in one product: what each gives alone, wherever its pages lie."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import ModelGeometry
from adaverify_engine import Sampling, executor
from adaverify_engine.attention import ChunkAttention, PackedChunks, attention_of
from adaverify_engine.cache import PagedCache

PAGE, WIDTH = 4, 12
GEOMETRY = ModelGeometry("toy", 2, 8, 6, 2, 8, 11, 64, ())
PLACES = st.tuples(st.integers(0, 20), st.integers(1, 20))


def filled(requests):
    """Return a cache of random values and scattered pages [requests, WIDTH]; the null page is poisoned."""
    cache = PagedCache(GEOMETRY, 1 + requests * WIDTH, PAGE, torch.float32, torch.device("cpu"))
    torch.manual_seed(2)
    cache.data.copy_(torch.randn(cache.data.shape))
    cache.data[:, :, :PAGE] = float("nan")
    pages = 1 + np.random.default_rng(0).permutation(requests * WIDTH).astype(np.int32)
    return cache, pages.reshape(requests, WIDTH)


@settings(max_examples=60, deadline=None)
@given(places=st.lists(PLACES, min_size=1, max_size=6), layer=st.integers(0, 1))
def test_each_chunk_attends_as_it_does_alone(places, layer):
    """Any mix of starts and lengths: padded queries and keys change nothing, and no page 0 is read."""
    cache, table = filled(len(places))
    for row, (start, length) in enumerate(places):
        table[row, -(-(start + length) // PAGE) :] = 0
    pieces = [(table[row], start, length) for row, (start, length) in enumerate(places)]
    packed = PackedChunks(pieces, 3, cache)
    query = torch.randn(packed.length, 6, 8)
    alone, at = [], 0
    for piece in pieces:
        alone.append(ChunkAttention(*piece, 3, cache)(layer, query[at : at + piece[2]]))
        at += piece[2]
    assert packed.length == at
    torch.testing.assert_close(packed(layer, query), torch.cat(alone), rtol=2e-5, atol=2e-5)


def test_chunks_of_about_the_same_size_are_one_product(monkeypatch):
    """That is what packing is for: launches follow the sizes and not the chunks."""
    cache, table = filled(9)
    lengths = [9, 10, 16, 12, 13, 9, 15, 2, 2]
    calls, product = [], torch.nn.functional.scaled_dot_product_attention

    def counted(*arguments, **options):
        calls.append(len(arguments[0]))
        return product(*arguments, **options)

    monkeypatch.setattr("adaverify_engine.attention.packed.scaled_dot_product_attention", counted)
    packed = PackedChunks([(row, 0, length) for row, length in zip(table, lengths, strict=True)], 3, cache)
    packed(0, torch.randn(sum(lengths), 6, 8))
    assert calls == [7, 2]


def test_a_cpu_attends_chunk_by_chunk():
    """Keys are read there where they lie."""
    cache, table = filled(2)
    chosen = attention_of([(table[0], 0, 3), (table[1], 0, 2)], 3, cache)
    assert [type(one) for one in chosen] == [ChunkAttention] * 2


@pytest.mark.parametrize("mode", ["none", "fixed"])
def test_an_engine_that_packs_emits_the_oracles_tokens(make_engine, tiny, monkeypatch, mode):
    """Prompts in several chunks, beside decodes, as an accelerator reads them."""
    packs = []

    def packed(pieces, group, cache):
        packs.append(len(pieces))
        return [PackedChunks(pieces, group, cache)]

    monkeypatch.setattr(executor, "attention_of", packed)
    engine, prompts = make_engine(mode, prefill_chunk=40), tiny.prompts(9)
    ids = [engine.add(prompt, Sampling(max_tokens=7 + 3 * at)) for at, prompt in enumerate(prompts)]
    done = engine.run()
    for at, (request, prompt) in enumerate(zip(ids, prompts, strict=True)):
        assert list(done[request].tokens) == tiny.greedy(tiny.Decoder(), prompt, 7 + 3 * at)
    assert max(packs) > 1
