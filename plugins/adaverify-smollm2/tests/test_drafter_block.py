"""The block drafter as an engine drives it: the right score, the right number of drafts, and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from adaverify_contracts import BlockDrafter, EngineError, Limits, ModelFileError, ModelOptions, TappedModel
from adaverify_smollm2 import load_model_file
from adaverify_smollm2.drafter import BlockDrafterModel, DrafterConfig
from adaverify_smollm2.drafter.block import SmolBlockDrafter, open_block_drafter
from adaverify_smollm2.drafter.packing import PackedLinear, pack_linears
from adaverify_smollm2.drafter.weights import save_block_drafter
from adaverify_smollm2.projection import packing_refusal

CPU = torch.device("cpu")
LIMITS = Limits(max_requests=4, draft_tokens=7, max_model_len=48, page_size=8)


@pytest.fixture(scope="module")
def target(tiny_path):
    return load_model_file(tiny_path, ModelOptions(dtype="float32"), name="tiny").model


@pytest.fixture(scope="module")
def config(target):
    sizes = target.geometry
    return DrafterConfig(
        block=7,
        hidden=sizes.hidden,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        intermediate=96,
        table=24,
        rank=16,
        vocabulary=sizes.vocabulary,
        draft_vocabulary=200,
        feature_layers=(1, 2),
        cross_layers=(0, 1),
        norm_eps=1e-5,
        rope_base=10000.0,
        target="tiny",
    )


def random_model(config, seed=3):
    torch.manual_seed(seed)
    ids = torch.randperm(config.vocabulary)[: config.draft_vocabulary].sort().values
    return BlockDrafterModel(config, ids).eval().requires_grad_(False)


def bound(target, model, limits=LIMITS):
    drafter = SmolBlockDrafter(limits, model.config, lambda dtype: model.to(dtype))
    drafter.bind(target, torch.float32)
    return drafter


def attend(layer, query):
    """A context that is a function of the query alone, so that rows do not mix."""
    return torch.tanh(query) * (layer + 1)


def inputs(config, rows, seed=0):
    random = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rows, config.features, generator=random),
        torch.randint(0, config.vocabulary, (rows,), generator=random),
        torch.randint(1, 40, (rows,), generator=random),
    )


def test_target_and_drafter_keep_the_contracts(target, config):
    drafter = SmolBlockDrafter(LIMITS, config, lambda dtype: random_model(config))
    assert isinstance(drafter, BlockDrafter), "also before it is bound"
    drafter.bind(target, torch.float32)
    assert isinstance(target, TappedModel)
    assert isinstance(drafter, BlockDrafter)
    assert (drafter.taps, drafter.queries) == ((1, 2), 7)


def test_each_request_is_scored_in_its_own_regime(target, config):
    """Greedy at temperature 0, sampled above; drafts are the same in both."""
    model = random_model(config)
    drafter = bound(target, model)
    arguments = inputs(config, 3)
    drafts, scores = drafter.block(*arguments, torch.tensor([0.0, 0.7, 0.0]), attend)
    expected, doubts = model.draft(*arguments, attend)
    assert torch.equal(drafts, expected)
    assert torch.equal(scores[0], doubts[0, :, 0])
    assert torch.equal(scores[1], doubts[1, :, 1])
    assert not torch.equal(doubts[1, :, 0], doubts[1, :, 1])
    assert scores.dtype == torch.float32


@pytest.mark.parametrize("width", [1, 3, 7])
def test_fewer_drafts_than_the_block_are_its_first_ones(target, config, width):
    """K below the trained block: the first K drafts and scores, unchanged (vllm #47419)."""
    model, arguments = random_model(config), inputs(config, 2)
    drafter = bound(target, model, replace(LIMITS, draft_tokens=width))
    drafts, scores = drafter.block(*arguments, torch.zeros(2), attend)
    expected, doubts = model.draft(*arguments, attend)
    assert torch.equal(drafts, expected[:, :width])
    assert torch.equal(scores, doubts[:, :width, 0])


def test_more_drafts_than_the_block_are_refused(target, config):
    """K above the trained block (vllm #50012)."""
    with pytest.raises(EngineError, match="fewer draft tokens"):
        bound(target, random_model(config), replace(LIMITS, draft_tokens=8))


@pytest.mark.parametrize("change", [{"target": "another"}, {"kv_heads": 4}, {"vocabulary": 300}])
def test_another_target_is_refused(target, config, change):
    with pytest.raises(EngineError, match="another target"):
        bound(target, random_model(replace(config, **change)))


def test_weights_are_shared_by_the_engines_of_a_process(target, config, tmp_path):
    """Several modes are compared in one process: one copy; absent weights are an error of their own."""
    save_block_drafter(random_model(config), tmp_path)
    two = [open_block_drafter(LIMITS, CPU, tmp_path) for _ in range(2)]
    for drafter in two:
        drafter.bind(target, torch.float32)
    assert two[0]._model is two[1]._model
    with pytest.raises(ModelFileError, match="no weights here"):
        open_block_drafter(LIMITS, CPU, tmp_path / "absent")


def test_packed_layers_draft_what_plain_ones_do(config):
    """The large layers are packed, small ones stay; in float32 rows do not depend on their batch mates."""
    if refusal := packing_refusal(CPU, torch.float32):
        pytest.skip(refusal)
    large = replace(config, intermediate=512)
    plain, packed = random_model(large), pack_linears(random_model(large))
    kinds = [type(module) for module in packed.modules()]
    assert kinds.count(PackedLinear) >= 2
    assert torch.nn.Linear in kinds
    arguments = inputs(large, 5)
    with torch.inference_mode():
        for one, two in zip(plain.draft(*arguments, attend), packed.draft(*arguments, attend), strict=True):
            torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)
        alone = packed.draft(*(part[2:3] for part in arguments), attend)
        assert torch.equal(alone[0], packed.draft(*arguments, attend)[0][2:3])


def test_a_draft_reads_nothing_on_the_host(target, config):
    """On the meta device there are shapes and no values: whatever asked for one would raise."""
    meta = torch.device("meta")
    drafter = bound(target, random_model(config).to(meta))
    arguments = (part.to(meta) for part in inputs(config, 3))
    drafts, scores = drafter.block(*arguments, torch.zeros(3, device=meta), attend)
    assert drafts.shape == scores.shape == (3, 7)
    assert (drafts.dtype, scores.dtype) == (torch.int64, torch.float32)
