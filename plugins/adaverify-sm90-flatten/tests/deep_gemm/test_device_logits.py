"""DeepGEMM on the chip itself, at sizes upstream does not test, against the float32 reference."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from adaverify_contracts import KernelLevel, Limits
from adaverify_metadata import TailHeavySchedule, schedule_tail_heavy
from adaverify_metadata.paged_logits import (
    pack_pages,
    paged_mqa_logits_reference,
    relative_errors,
)
from adaverify_sm90_flatten import hooks
from adaverify_sm90_flatten.deep_gemm.adapter import PagedMqaLogits
from adaverify_sm90_flatten.deep_gemm.versions import PINNED
from adaverify_sm90_flatten.ops.gather_slots.launch import gather_slots

pytestmark = pytest.mark.sm90

# float32 logits: 1.3e-4 measured; FP8 tensor cores keep fewer bits than float32 (deepgemm section 10).
TOLERANCE = 1e-3
EDGES = [0, 1, 63, 64, 65, 255, 256, 257, 511, 512, 513, 1000]
MINUS = float("-inf")


@pytest.fixture(scope="module")
def adapters(deep_gemm):
    """One warmed adapter for each number of heads."""
    made = {
        heads: PagedMqaLogits(deep_gemm, heads=heads, head_dim=128, page_size=64, device="cuda", checked=True)
        for heads in (32, 64)
    }
    made[32].warm_up([1, 2])
    made[64].warm_up()
    return made


def reference(call):
    values = (call.q, call.kv, call.weights, call.row_lens, call.block_table, call.max_context_len)
    return paged_mqa_logits_reference(*values)


def agree(got, want):
    assert got.shape == want.shape
    assert torch.equal(got == MINUS, want == MINUS)
    errors = relative_errors(got, want)
    assert float(errors.max()) < TOLERANCE, (int(errors.argmax()), float(errors.max()))


def test_the_probe_executed_this_build(here, deep_gemm):
    report = here.kernel("deep-gemm")
    assert report.level is KernelLevel.EXECUTED
    assert report.version == deep_gemm.__version__
    if report.version == PINNED:
        assert "listed as verified" in report.reason


@pytest.mark.parametrize("heads", [32, 64])
@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize("apart", [0, 48])
def test_logits_agree_at_every_edge(kit, adapters, heads, tokens, apart):
    """Zero lengths first, in the middle and last; permuted pages, pages apart, rubbish in unused columns."""
    lens = [*EDGES, 0, 300, 0]
    call = kit.call(lens, tokens=tokens, heads=heads, device="cuda", apart=apart, width=1000)
    agree(adapters[heads](call), reference(call))


@pytest.mark.parametrize("rows", [1, 3, 31, 32, 33, 64, 250])
@pytest.mark.parametrize("tokens", [1, 2])
def test_logits_agree_at_row_counts_around_the_buckets(kit, adapters, rows, tokens):
    made = torch.Generator().manual_seed(rows)
    lens = torch.randint(0, 400, (rows,), generator=made).tolist()
    call = kit.call(lens, tokens=tokens, device="cuda", seed=rows, width=431)
    agree(adapters[64](call), reference(call))


@pytest.mark.parametrize("rows", [1, 32, 33, 64])
def test_a_batch_of_zero_lengths_is_all_minus_infinity(kit, adapters, rows):
    """vllm #51970, TensorRT-LLM #14940: 32, 64 and 256 rows faulted, 33 passed."""
    got = adapters[64](kit.call([0] * rows, device="cuda", width=100))
    assert bool((got == MINUS).all())


def test_four_tokens_a_row_agree_with_half_the_slots(kit, adapters):
    call = kit.call([*EDGES, 0], tokens=4, device="cuda", width=1003)
    agree(adapters[64](call), reference(call))


def test_negative_weights_agree_over_all(kit, adapters):
    """One cell may cancel to nearly nothing, so rows of a few cells have no meaningful relative error."""
    call = kit.call([63, 500, 1000], device="cuda", signed=True)
    agree(adapters[64](call), reference(call))


def test_a_row_does_not_depend_on_its_batch_mates(kit, adapters):
    """Bit for bit, alone and among others, and twenty times over."""
    call = kit.call([300, 0, 1000, 257], device="cuda", width=1000)
    together = adapters[64](call)
    for _ in range(20):
        assert torch.equal(adapters[64](call), together)
    lens = call.row_lens[2:3].contiguous()
    alone = dataclasses.replace(
        call,
        q=call.q[2:3].contiguous(),
        weights=call.weights[2:3].contiguous(),
        row_lens=lens,
        block_table=call.block_table[2:3],
        schedule=schedule_tail_heavy(lens, 132),
    )
    assert torch.equal(adapters[64](alone)[0], together[2])


def test_the_largest_number_of_rows_that_is_allowed(kit, adapters):
    """16384 rows, the most our schedule kernel holds; neighbouring rows share a page."""
    rows = adapters[64].known.contract.max_rows
    made = torch.Generator().manual_seed(3)
    few = kit.call([64] * 256, device="cuda", width=64)
    lens = torch.randint(0, 65, (rows, 1), generator=made, dtype=torch.int32).cuda()
    limits = Limits(max_requests=rows, draft_tokens=0, max_model_len=64, page_size=64)
    schedule = TailHeavySchedule(limits, "cuda", adapters[64].slots(1), backend="triton")
    call = dataclasses.replace(
        few,
        q=few.q.view(torch.uint8).repeat(rows // 256, 1, 1, 1).view(few.q.dtype),
        weights=few.weights.repeat(rows // 256, 1),
        row_lens=lens,
        block_table=few.block_table.repeat(rows // 256, 1),
        schedule=schedule.build(lens.clamp(min=1)),
    )
    got = adapters[64](call)
    full = reference(few).repeat(rows // 256, 1)
    agree(got, full.masked_fill(torch.arange(64, device="cuda") >= lens, MINUS))


@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize("padding", [1, 31, 200])
def test_padding_rows_left_out_of_the_schedule_change_no_score(kit, adapters, tokens, padding):
    """The library's walk meets an end mark in front of its last rows, which are masked then."""
    call = kit.call([0, *EDGES, 300, *[0] * padding], tokens=tokens, device="cuda", width=1000)
    lens, slots = call.row_lens, adapters[64].slots(tokens)
    cut = schedule_tail_heavy(lens.clamp(min=1), slots, row_lens=lens)
    assert cut[-1].tolist() == [14, 0]
    got = adapters[64](dataclasses.replace(call, schedule=cut))
    agree(got, reference(call))
    assert torch.equal(got, adapters[64](call))
    nothing = kit.call([0] * (padding + 1), tokens=tokens, device="cuda", width=100)
    empty = schedule_tail_heavy(nothing.row_lens.clamp(min=1), slots, row_lens=nothing.row_lens)
    assert not empty.any()
    assert bool((adapters[64](dataclasses.replace(nothing, schedule=empty)) == MINUS).all())


@pytest.mark.parametrize("rows", [1, 3, 31, 32, 33, 64, 250])
def test_our_schedule_equals_the_librarys(adapters, rows):
    """Lengths from 1 on; an all-zero batch has no portable answer. Our Triton kernel and the reference."""
    limits = Limits(max_requests=rows, draft_tokens=1, max_model_len=40000, page_size=64)
    made = torch.Generator().manual_seed(rows)
    for tokens, top in ((1, 300), (1, 40000), (2, 3000)):
        lens = torch.randint(1, top, (rows, tokens), generator=made, dtype=torch.int32)
        lens = lens.sort(dim=1).values.cuda()
        slots = adapters[64].slots(tokens)
        want = adapters[64].schedule(lens)
        ours = TailHeavySchedule(limits, "cuda", slots, backend="triton").build(lens)
        assert torch.equal(ours, want)
        assert torch.equal(schedule_tail_heavy(lens, slots), want)


@pytest.mark.parametrize("name", ["flatten", "paired"])
@pytest.mark.parametrize("heads", [32, 64])
def test_rows_schedule_and_logits_in_one_graph_replayed_with_other_lengths(kit, here, deep_gemm, name, heads):
    """Every query token's scores, whatever the lengths were when the graph was captured."""
    limits = Limits(max_requests=6, draft_tokens=7, max_model_len=1017, page_size=64)
    tokens = limits.max_tokens
    strategy = {item.name: item for item in hooks.adaverify_register_decode_strategies()}[name]
    builder = strategy.allocate(limits, torch.device("cuda"), here)
    made = torch.Generator().manual_seed(heads)
    batch = kit.batch([8] * 6, [900] * 6, tokens, limits, device="cuda")
    kv = pack_pages(torch.randn(6 * limits.table_width, 64, 128, generator=made)).cuda()
    query = torch.randn(tokens, heads, 128, generator=made).to(torch.float8_e4m3fn).cuda()
    weights = (torch.rand(tokens, heads, generator=made) + 0.1).cuda()
    logits = PagedMqaLogits(deep_gemm, heads=heads, head_dim=128, page_size=64, device="cuda")
    logits.warm_up([1, 2])

    def step():
        rows = builder.build(batch)
        q, w = gather_slots(query, weights, rows)
        scores = logits.rows(q, kv, w, rows, limits.max_kv_len)
        return scores[rows.token_slot]

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        by_token = step()
    for lens in (
        [8, 8, 8, 8, 8, 8],
        [1, 8, 3, 0, 5, 2],
        [0, 0, 0, 0, 0, 0],
        [1, 0, 0, 0, 0, 0],
        [7, 7, 7, 7, 7, 7],
        [0, 8, 0, 8, 1, 1],
    ):
        query_lens = torch.tensor(lens)
        kv_lens = torch.randint(0, 1017, (6,), generator=made)
        kv_lens[4] = 0
        batch.query_start_loc[1:].copy_(query_lens.cumsum(0))
        batch.seq_lens.copy_(torch.where(query_lens > 0, kv_lens + query_lens, 0))
        graph.replay()
        owner = torch.repeat_interleave(torch.arange(6), query_lens)
        place = torch.cat([torch.arange(count) for count in lens]) if sum(lens) else torch.zeros(0)
        total = len(owner)
        want = paged_mqa_logits_reference(
            query[:total, None],
            kv,
            weights[:total],
            (kv_lens[owner] + place + 1).int().view(-1, 1).cuda(),
            batch.block_table[owner.cuda()],
            limits.max_kv_len,
        )
        agree(by_token[:total], want)
