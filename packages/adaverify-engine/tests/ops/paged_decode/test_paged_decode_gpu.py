"""On a GPU: values of the compiled kernel, and a captured launch that follows other rows."""

from __future__ import annotations

import random

import pytest
import torch

from adaverify_contracts import Limits
from adaverify_engine.attention import DecodeAttentionChoice, PagedDecodeAttention
from adaverify_engine.ops.paged_decode import PagedDecodeScratch, paged_decode, paged_decode_reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
SHAPES = [(9, 3, 64), (8, 8, 32), (16, 1, 128)]


def lengths(seed, requests, uniform, longest):
    """Draw query and KV lengths; requests without tokens among the ragged ones."""
    draw = random.Random(seed)
    query = [draw.choice([0, 8]) if uniform else draw.randint(0, 8) for _ in range(requests)]
    query[0] = 8
    return query, [draw.randint(count, longest) if count else 0 for count in query]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
@pytest.mark.parametrize("strategy", ["uniform", "flatten", "paired", "varlen"])
def test_values_equal_the_reference(decode, strategy, heads, kv_heads, dim, dtype):
    """Several splits, and one split, over scattered pages with NaN wherever nobody may look."""
    for longest in (700, 240):
        query, lens = lengths(longest, 6, strategy == "uniform", longest)
        case = decode.case(
            strategy, query, lens, padding=3, heads=heads, kv_heads=kv_heads, dim=dim, longest=longest,
            dtype=dtype,
        )  # fmt: skip
        out = case.run(decode.config())
        expected = paged_decode_reference(case.query, case.keys, case.values, case.rows, case.page)
        bound = decode.tolerance[dtype]
        torch.testing.assert_close(out.float(), expected, rtol=bound, atol=bound)
        assert not out[case.batch.num_tokens :].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_strategies_agree_bit_for_bit(decode, dtype):
    """Token identity between modes rests on this: the same tile, whatever the rows."""
    shape = {"heads": 9, "kv_heads": 3, "dim": 64, "longest": 700, "dtype": dtype}
    found = []
    for strategy in ("uniform", "flatten", "paired", "varlen"):
        case = decode.case(strategy, [8, 8, 8], [700, 31, 257], **shape)
        found.append(case.run(decode.config()))
    assert all(torch.equal(out, found[0]) for out in found[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_batch_mates_and_padding_change_no_bit(decode, dtype):
    """One request alone against the same request first among seven, padded by 20 tokens."""
    shape = {"heads": 9, "kv_heads": 3, "dim": 64, "longest": 700, "dtype": dtype}
    case = decode.case("flatten", [5, 8, 1, 2, 8, 3, 7], [515, 700, 1, 40, 256, 257, 90], padding=20, **shape)
    together = case.run(decode.config())
    batch = case.batch
    alone = type(batch)(batch.query_start_loc[:2], batch.seq_lens[:1], batch.block_table[:1], 1, 5, 5, 8)
    rows = decode.builder("flatten", case.limits).build(alone)
    assert torch.equal(case.run(decode.config(), query=case.query[:5], rows=rows), together[:5])


@pytest.mark.parametrize("strategy", ["uniform", "flatten", "paired", "varlen"])
@pytest.mark.parametrize("longest", [700, 240])
def test_a_captured_launch_replays_with_other_rows(decode, strategy, longest):
    """The rows' contents change between replays, from poisoned output and scratch."""
    uniform = strategy == "uniform"
    case = decode.case(strategy, [8] * 6, [longest] * 6, heads=9, kv_heads=3, dim=64, longest=longest)
    scratch, out = case.scratch(decode.config()), torch.empty_like(case.query)
    builder = decode.builder(strategy, case.limits)
    rows = builder.build(case.batch)

    def work():
        paged_decode(
            case.query, case.keys, case.values, rows, out,
            page_size=case.page, max_kv_len=case.limits.max_kv_len, scratch=scratch,
        )  # fmt: skip

    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    for seed in range(1, 5):
        query, lens = lengths(seed, 6, uniform, longest)
        case.batch.query_start_loc.copy_(torch.tensor([0, *query]).cumsum(0))
        case.batch.seq_lens.copy_(torch.tensor(lens))
        builder.build(case.batch)
        for tensor in (out, scratch.partial, scratch.extremes):
            tensor.fill_(float("nan"))
        graph.replay()
        expected = paged_decode_reference(case.query, case.keys, case.values, rows, case.page)
        torch.testing.assert_close(out, expected, rtol=2e-5, atol=2e-5)
        assert not out[sum(query) :].any()


def test_a_launch_neither_waits_nor_allocates(decode, refusing_waits):
    """Torch raises on any sync, and the allocator's counters stand still."""
    case = decode.case("flatten", [8, 8], [700, 300], heads=9, kv_heads=3, dim=64, longest=700)
    scratch, out = case.scratch(decode.config()), torch.empty_like(case.query)

    def work():
        paged_decode(
            case.query, case.keys, case.values, case.rows, out,
            page_size=case.page, max_kv_len=700, scratch=scratch,
        )  # fmt: skip

    work()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    with refusing_waits():
        work()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_the_engine_chooses_the_kernel_and_it_equals_the_gathered_path(decode):
    """The choice an executor makes, against the fallback over the same cache."""
    case = decode.case("paired", [3, 1, 8], [300, 9, 700], heads=9, kv_heads=3, dim=64, longest=700)
    cache, geometry = decode.cached(case)
    choice = DecodeAttentionChoice(geometry, case.limits, cache)
    start = case.batch.query_start_loc
    made = choice.plan(case.rows, start, queries=8, max_kv_len=700)
    assert (choice.name, choice.reason) == ("paged", "")
    assert isinstance(made, PagedDecodeAttention)
    choice._scratch = None
    gathered = choice.plan(case.rows, start, queries=8, max_kv_len=700)
    torch.testing.assert_close(made(0, case.query), gathered(0, case.query), rtol=1e-4, atol=1e-4)


def test_a_pool_past_2_31_elements(decode):
    """The last page of a 10 GiB pool: offsets in 32 bits would read another (DeepGEMM #425)."""
    if torch.cuda.mem_get_info()[0] < 14 * 2**30:
        pytest.skip("needs 14 GiB of free device memory")
    limits = Limits(1, 0, 32, 16)
    pages = (2**31 + 2**28) // (16 * 64) + 1
    case = decode.case("flatten", [1], [32], heads=1, kv_heads=1, dim=64, longest=32, dtype=torch.bfloat16)
    pool = torch.empty((2, pages * 16, 1, 64), dtype=torch.bfloat16, device="cuda")
    pool[:, -32:] = torch.randn(2, 32, 1, 64, device="cuda", dtype=torch.bfloat16)
    case.rows.block_table[0, :2] = torch.tensor([pages - 2, pages - 1])
    keys, values = pool
    out = torch.full_like(case.query, float("nan"))
    scratch = PagedDecodeScratch(1, 1, 64, limits.max_kv_len, "cuda")
    paged_decode(case.query, keys, values, case.rows, out, page_size=16, max_kv_len=32, scratch=scratch)
    expected = paged_decode_reference(case.query, keys, values, case.rows, 16)
    torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=2e-2)
