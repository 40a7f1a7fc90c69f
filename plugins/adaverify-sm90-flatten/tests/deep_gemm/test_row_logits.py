"""Scores by query token: what a decoder that knows no kernel library is handed."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from adaverify_contracts import CapabilityError, Limits
from adaverify_metadata import FlattenRowBuilder, PairedRowBuilder, TailHeavySchedule, pack_pages
from adaverify_metadata.paged_logits import paged_mqa_logits_reference
from adaverify_sm90_flatten import hooks
from adaverify_sm90_flatten.deep_gemm.adapter import PagedMqaLogits
from adaverify_sm90_flatten.deep_gemm.row_logits import RowLogits

LIMITS = Limits(max_requests=3, draft_tokens=7, max_model_len=1200, page_size=64, compress_ratio=4)
MINUS = float("-inf")


@pytest.mark.parametrize("builder", [FlattenRowBuilder, PairedRowBuilder])
def test_every_tokens_scores_are_at_its_slot(kit, builder):
    """Rows of one and of two tokens, ragged queries, a request without tokens, lengths divided by four."""
    query, lens, tokens = [3, 0, 8], [1000, 0, 77], 14
    schedule = TailHeavySchedule(LIMITS, "cpu", kit.library.processors, backend="torch")
    rows = builder("paired" if builder is PairedRowBuilder else "flatten", LIMITS, "cpu", backend="torch",
                   schedule=schedule).build(kit.batch(query, lens, tokens, LIMITS))  # fmt: skip
    made = torch.Generator().manual_seed(4)
    pool = pack_pages(torch.randn(3 * LIMITS.table_width, 64, 128, generator=made))
    codes = torch.randn(tokens, 64, 128, generator=made).to(torch.float8_e4m3fn)
    weights = torch.rand(tokens, 64, generator=made)
    adapter = PagedMqaLogits(
        kit.library(), heads=64, head_dim=128, page_size=64, device="cpu", backend="torch"
    )
    width = LIMITS.max_kv_len // 4
    got = RowLogits(adapter, backend="torch")(codes, weights, pool, rows, width)[rows.token_slot.long()]
    total, table = sum(query), kit.batch(query, lens, tokens, LIMITS).block_table
    owner = torch.tensor([0] * 3 + [2] * 8)
    seen = torch.tensor([(1000 + j) // 4 for j in (1, 2, 3)] + [(77 + j) // 4 for j in range(1, 9)])
    want = paged_mqa_logits_reference(
        codes[:total, None], pool, weights[:total], seen.int()[:, None], table[owner], width
    )
    assert torch.equal(got[:total] == MINUS, want == MINUS)
    torch.testing.assert_close(got[:total], want)


def test_all_strategies_offer_scores(kit):
    strategies = hooks.adaverify_register_decode_strategies()
    assert {one.name for one in strategies if one.logits} == {"flatten", "paired", "uniform-native"}


@pytest.mark.skipif(importlib.util.find_spec("deep_gemm") is not None, reason="DeepGEMM is here")
def test_without_the_library_the_reason_is_named():
    (strategy, *_) = hooks.adaverify_register_decode_strategies()
    with pytest.raises(CapabilityError, match="DeepGEMM"):
        strategy.logits(64, 128, 64, torch.device("cpu"))
