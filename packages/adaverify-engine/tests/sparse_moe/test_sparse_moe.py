"""The whole step on a CPU in float32: causal, trim-invariant, and the same in every arrangement of rows."""

from __future__ import annotations

import pytest
import torch

from adaverify_contracts import EngineError, Limits

# Triton's interpreter turns loop bounds into integers in a way that NumPy deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")


@pytest.fixture
def model(moe):
    """A tiny decoder with three open requests: past its 16 selected entries and before them."""
    made = moe.Model(moe.Sizes.tiny(), moe.limits(), "cpu", seed=3)
    made.open(100)
    return made


def close(left, right):
    torch.testing.assert_close(left, right, rtol=2e-4, atol=2e-4)


LENS = [5, 97, 150]


def test_a_step_decides_a_token_of_the_vocabulary_for_every_query_token(moe, model):
    table = model.caches.block_table
    staged = moe.stage(model.limits, [8, 3, 1], LENS, table, padding=4)
    tokens = model.decode(staged, torch.tensor(LENS, dtype=torch.int32), table)
    assert tokens.dtype == torch.int32
    assert tokens.shape == (16,)
    assert bool(((tokens >= 0) & (tokens < model.sizes.vocabulary)).all())
    assert len(set(tokens[:12].tolist())) > 6
    close(
        torch.nn.functional.linear(moe.run(model, [8, 3, 1], LENS, padding=4), model._weights.head)
        .argmax(-1)
        .int(),
        tokens,
    )


def test_eight_tokens_at_once_equal_eight_steps_of_one(moe, model):
    """Causality and the cache in one: a later step reads the entries that earlier steps completed."""
    together = moe.run(model, [8, 8, 8], LENS)
    model.open(100)
    for place in range(8):
        alone = moe.run(model, [1, 1, 1], [length + place for length in LENS])
        close(alone, together[place::8])


def test_an_entry_completed_in_the_step_reaches_later_tokens_only(moe, model):
    """Another token at position 3 changes entry 0, which it completes: tokens before it do not see it."""
    before = moe.run(model, [8, 0, 0], [0, 0, 0])
    embedding = model._weights.embedding
    staged = moe.stage(model.limits, [8, 0, 0], [0, 0, 0], model.caches.block_table)
    table = model.caches.block_table
    number = int((3 * 7919 + int(table[0, 0]) * 104_729) % model.sizes.vocabulary)
    embedding[number] += 1.0
    after = model.hidden(staged, torch.zeros(3, dtype=torch.int32), table)
    moved = (after - before).abs().amax(1) > 1e-3
    assert moved.tolist() == [False] * 3 + [True] * 5


def test_trimming_and_padding_change_nothing(moe, model):
    """What is verified behind a token, or whose batch mate it is, does not reach it."""
    full = moe.run(model, [8, 8, 8], LENS)
    model.open(100)
    trimmed = moe.run(model, [3, 1, 6], LENS, padding=14)
    close(trimmed[:10], full[[0, 1, 2, 8, 16, 17, 18, 19, 20, 21]])
    model.open(100)
    alone = moe.run(model, [0, 5, 0], LENS)
    close(alone, full[8:13])


@pytest.mark.parametrize("strategy", ["paired", "varlen"])
def test_rows_of_every_strategy_give_the_same(moe, model, strategy):
    """Odd and even query lengths, a request without tokens, padding."""
    want = moe.run(model, [7, 0, 8], LENS, padding=5)
    model.open(100)
    close(moe.run(model, [7, 0, 8], LENS, padding=5, strategy=strategy)[:15], want[:15])


def test_the_kernels_give_the_step_that_torch_gives(moe):
    """The same weights and caches through every kernel, in Triton's interpreter without a GPU.

    At lengths where every entry is selected: the interpreter's e4m3 rounds wrongly, and scores would differ.
    """
    sizes = moe.Sizes(**(moe.Sizes.tiny().as_dict() | {"layers": 1}))
    found = []
    for backend in ("torch", "triton"):
        made = moe.Model(sizes, moe.limits(), moe.device, dtype=torch.float32, backend=backend)
        made.open(100)
        found.append(moe.run(made, [3, 0, 2], [5, 0, 58], padding=1)[:5])
    close(found[1], found[0])


def test_only_completed_entries_are_written(moe, model):
    """Positions 97 .. 99 and 150 .. 151: entries 24 and 37, in both caches of every layer, nothing else."""
    latents, index = model.caches.latents.clone(), model.caches.index.clone()
    moe.run(model, [0, 3, 2], LENS, padding=3)
    table, page = model.caches.block_table, model.limits.page_size
    cells = {int(table[r, e // page]) * page + e % page for r, e in ((1, 24), (2, 37))}
    for layer in range(model.sizes.layers):
        changed = (latents[layer] != model.caches.latents[layer]).any(1).nonzero().flatten()
        assert set(changed.tolist()) == cells
        bytes_of = [pool.view(len(pool), page, -1) for pool in (index[layer], model.caches.index[layer])]
        flat = [pool.view(len(pool), -1)[:, : page * model.sizes.index_dim] for pool in bytes_of]
        codes = [pool.reshape(-1, model.sizes.index_dim) for pool in flat]
        assert set((codes[0] != codes[1]).any(1).nonzero().flatten().tolist()) == cells


def test_a_token_reads_no_entry_past_its_own_position(moe, model):
    """NaN in every entry that is not complete yet, and in page 0, reaches nobody."""
    want = moe.run(model, [8, 8, 8], LENS)
    model.open(100)
    page = model.limits.page_size
    for request, length in enumerate(LENS):
        for entry in range((length + 8) // 4, model.limits.table_width * page):
            cell = int(model.caches.block_table[request, entry // page]) * page + entry % page
            model.caches.latents[:, cell] = float("nan")
    model.caches.latents[:, :page] = float("nan")
    close(moe.run(model, [8, 8, 8], LENS), want)


def test_routed_rows_spread_over_the_experts(moe):
    """Random routers load experts evenly and hidden states stay apart: the cost curve rests on both."""
    sizes = moe.Sizes(**(moe.Sizes.tiny().as_dict() | {"layers": 8, "experts": 32, "local_experts": 8}))
    model = moe.Model(sizes, moe.limits(requests=8), "cpu")
    model.open(100)
    counts = []
    route = type(model)._experts

    def counting(self, number, layer, residual, norm, request):
        logits = torch.nn.functional.linear(norm, layer.gate[: sizes.experts])
        counts.append(torch.bincount(logits.topk(3).indices.flatten(), minlength=32))
        return route(self, number, layer, residual, norm, request)

    type(model)._experts = counting
    try:
        moe.run(model, [8] * 8, [100 + 3 * r for r in range(8)])
    finally:
        type(model)._experts = route
    # 64 tokens x 3 over 32 experts are 6 each; the last layer as the first.
    for layer in (counts[0], counts[-1]):
        assert int((layer > 0).sum()) >= 28
        assert int(layer.max()) <= 24


def test_limits_of_another_compression_are_refused(moe):
    with pytest.raises(EngineError, match="compress_ratio"):
        moe.Model(moe.Sizes.tiny(), Limits(1, 7, 100, 8), "cpu")
    with pytest.raises(EngineError, match="page"):
        moe.Model(moe.Sizes.tiny(), Limits(1, 7, 100, 1, compress_ratio=4), "cpu")


def test_requests_longer_than_the_limits_are_not_opened(moe, model):
    with pytest.raises(EngineError, match="length"):
        model.open(201)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layers", 0),
        ("latent", 48),
        ("rope", 8),
        ("local_experts", 17),
        ("active_experts", 17),
        ("hidden", 60),
    ],
)
def test_sizes_out_of_range_are_refused_by_name(moe, name, value):
    with pytest.raises(EngineError, match=name):
        moe.Sizes(**(moe.Sizes.tiny().as_dict() | {name: value}))


def test_the_default_sizes_fit_the_card(moe):
    """Weights near 50 GB in bfloat16, as the docstring says, counted from what is drawn."""
    sizes = moe.Sizes()
    assert 46e9 < 2 * sizes.parameters < 50e9
    tiny = moe.Model(moe.Sizes.tiny(), moe.limits(), "cpu")
    drawn = [tiny._weights.embedding, tiny._weights.head]
    for layer in tiny._weights.layers:
        drawn += [getattr(layer, name) for name in layer.__slots__]
    assert sum(tensor.numel() for tensor in drawn) == tiny.sizes.parameters
    assert tiny.bytes["weights"] == 4 * tiny.sizes.parameters
