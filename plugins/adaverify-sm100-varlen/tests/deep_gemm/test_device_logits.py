"""DeepGEMM on the chip itself, at sizes upstream does not test, against the float32 reference."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from adaverify_contracts import KernelLevel, Limits
from adaverify_metadata import pack_pages, paged_mqa_logits_reference, relative_errors
from adaverify_sm100_varlen import hooks
from adaverify_sm100_varlen.deep_gemm.adapter import PagedMqaLogits
from adaverify_sm100_varlen.deep_gemm.probe import TOLERANCES
from adaverify_sm100_varlen.pages import pack_micro_scaled_pages, plain_pages
from adaverify_sm100_varlen.schedule import make_schedule, reference_schedule

pytestmark = pytest.mark.sm100

DEVICE = torch.device("cuda")
EDGES = [0, 1, 63, 64, 65, 255, 256, 257, 383, 384, 385, 511, 512, 513, 1000]
RUNS = [1, 2, 3, 4, 5, 8, 1, 7]
MINUS = float("-inf")


@pytest.fixture(scope="module")
def adapters(deep_gemm):
    """One warmed adapter for each number of heads."""
    sizes = {"head_dim": 128, "page_size": 64, "device": DEVICE, "checked": True}
    made = {heads: PagedMqaLogits(deep_gemm, heads=heads, **sizes) for heads in (32, 64)}
    for adapter in made.values():
        adapter.warm_up()
    return made


@pytest.fixture
def call(kit, adapters):
    """Return a function that makes a call of the loaded build's contract, on the device."""

    def made(requests, **options):
        contract, slots = adapters[64].known.contract, adapters[64].slots
        return kit.call(contract, requests, device=str(DEVICE), slots=slots, **options)

    return made


@pytest.fixture
def agree(kit, adapters):
    """Return a function that compares a call's logits with the float32 reference, row by row."""

    def compared(adapter, made):
        contract = adapter.known.contract
        got, want = adapter(made).float(), kit.reference(contract, made)
        assert got.shape == want.shape
        assert torch.equal(got == MINUS, want == MINUS)
        errors = relative_errors(got, want)
        assert float(errors.max()) < TOLERANCES[contract.value_dtype], (int(errors.argmax()), errors.max())

    return compared


def edge_requests():
    """Every edge length under runs of every size."""
    return [(RUNS[number % len(RUNS)], length) for number, length in enumerate(EDGES)]


def test_the_probe_executed_this_build(here, deep_gemm):
    report = here.kernel("deep-gemm-varlen")
    assert report.level is KernelLevel.EXECUTED
    assert report.version == deep_gemm.__version__


@pytest.mark.parametrize("heads", [32, 64])
@pytest.mark.parametrize("apart", [0, 48])
def test_logits_agree_at_every_edge(call, agree, adapters, heads, apart):
    """Zero lengths, permuted pages, pages apart, rubbish in unused columns, padding rows at the end."""
    requests = [(2, 0), *edge_requests(), (3, 300), (1, 0)]
    agree(adapters[heads], call(requests, heads=heads, apart=apart, width=1000, padding=3))


@pytest.mark.parametrize("requests", [1, 3, 31, 32, 33, 64, 250])
def test_logits_agree_at_row_counts_around_the_buckets(call, agree, adapters, requests):
    made = torch.Generator().manual_seed(requests)
    tokens = torch.randint(1, 9, (requests,), generator=made).tolist()
    lens = torch.randint(0, 400, (requests,), generator=made).tolist()
    pairs = list(zip(tokens, lens, strict=True))
    agree(adapters[64], call(pairs, seed=requests, width=431, padding=requests % 3))


@pytest.mark.parametrize("rows", [1, 32, 33, 64])
def test_a_batch_of_zero_lengths_is_all_minus_infinity(call, adapters, rows):
    """vllm #51970, TensorRT-LLM #14940: on another chip 32, 64 and 256 rows faulted, 33 passed."""
    got = adapters[64](call([(1, 0)] * rows, width=100, padding=0))
    assert bool((got == MINUS).all())


def test_negative_weights_agree_over_all(kit, call, adapters):
    """One cell may cancel to nearly nothing, so rows of a few cells have no meaningful relative error."""
    contract = adapters[64].known.contract
    made = call([(3, 500), (2, 1000)], signed=True)
    errors = relative_errors(adapters[64](made).float(), kit.reference(contract, made))
    assert float(errors[-1]) < TOLERANCES[contract.value_dtype]


def test_a_run_does_not_depend_on_its_batch_mates(call, adapters):
    """Bit for bit, alone and among others, and twenty times over."""
    made = call([(3, 300), (1, 0), (4, 1000), (2, 257)], width=1000)
    together = adapters[64](made)
    for _ in range(20):
        assert torch.equal(adapters[64](made), together)
    rows = slice(4, 8)
    lens, indices = made.row_lens[rows].contiguous(), made.request_indices[rows].clone()
    contract, slots = adapters[64].known.contract, adapters[64].slots
    alone = dataclasses.replace(
        made,
        q=made.q[rows].contiguous(),
        weights=made.weights[rows].contiguous(),
        row_lens=lens,
        block_table=made.block_table[rows],
        request_indices=indices,
        schedule=reference_schedule(contract, lens.clamp(min=1), slots, indices),
    )
    assert torch.equal(adapters[64](alone), together[rows])


@pytest.mark.parametrize("requests", [1, 3, 31, 32, 33, 64, 250])
def test_our_schedule_equals_the_librarys(adapters, requests):
    """Lengths from 1 on; an all-zero batch has no portable answer. Our kernel and the reference."""
    adapter = adapters[64]
    contract = adapter.known.contract
    limits = Limits(max_requests=requests, draft_tokens=7, max_model_len=40000, page_size=64)
    made = torch.Generator().manual_seed(requests)
    for top in (300, 40000):
        tokens = torch.randint(1, 9, (requests,), generator=made)
        indices = torch.arange(requests).repeat_interleave(tokens).int()
        ends = torch.randint(8, top, (requests,), generator=made).repeat_interleave(tokens)
        back = tokens.cumsum(0)[indices.long()] - 1 - torch.arange(len(indices))
        lens, ids = (ends - back).int()[:, None].to(DEVICE), indices.to(DEVICE)
        want = adapter.schedule(lens, ids)
        ours = make_schedule(contract, limits, DEVICE, adapter.slots, backend="triton").build(lens, ids)
        assert torch.equal(ours, want)
        assert torch.equal(reference_schedule(contract, lens, adapter.slots, ids), want)


@pytest.mark.parametrize("heads", [32, 64])
def test_rows_schedule_and_logits_in_one_graph_replayed_with_other_lengths(kit, here, adapters, heads):
    """Every query token's scores, whatever the lengths were when the graph was captured."""
    limits = Limits(max_requests=6, draft_tokens=7, max_model_len=1017, page_size=64)
    tokens, contract = limits.max_tokens, adapters[heads].known.contract
    varlen, _ = hooks.adaverify_register_decode_strategies()
    builder = varlen.allocate(limits, DEVICE, here)
    made = torch.Generator().manual_seed(heads)
    batch = kit.batch([8] * 6, [900] * 6, tokens, limits, device=DEVICE)
    packed = pack_micro_scaled_pages if contract.micro_scales else pack_pages
    kv = packed(torch.randn(6 * limits.table_width, 64, 128, generator=made)).to(DEVICE)
    plain = plain_pages(kv) if contract.micro_scales else kv
    query = torch.randn(tokens, 1, heads, 128, generator=made).to(torch.float8_e4m3fn).to(DEVICE)
    weights = torch.rand(tokens, heads, generator=made) + 0.1
    weights = weights.to(getattr(torch, contract.value_dtype)).to(DEVICE)
    # Another adapter: the checked ones wait, which a capture refuses.
    module = adapters[heads]._module
    logits = PagedMqaLogits(module, heads=heads, head_dim=128, page_size=64, device=DEVICE)
    logits.warm_up()

    def step():
        return logits.rows(query, kv, weights, builder.build(batch), limits.max_kv_len)

    replay, scores = kit.capture(step)
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
        replay()
        owner = torch.repeat_interleave(torch.arange(6), query_lens)
        place = torch.cat([torch.arange(count) for count in lens])
        total = len(owner)
        want = paged_mqa_logits_reference(
            query[:total],
            plain,
            weights[:total].float(),
            (kv_lens[owner] + place + 1).int().view(-1, 1).to(DEVICE),
            batch.block_table[owner.to(DEVICE)],
            limits.max_kv_len,
        )
        got = scores[:total].float()
        assert torch.equal(got == MINUS, want == MINUS)
        assert float(relative_errors(got, want).max()) < TOLERANCES[contract.value_dtype]
        assert bool((scores[total:] == MINUS).all())
