"""On a GPU: captured builds replay with other lengths, without a sync or an allocation."""

from __future__ import annotations

import random

import pytest
import torch

from adaverify_contracts import Limits
from adaverify_metadata import HeadHeavySchedule, PairedUnitsSchedule, TailHeavySchedule

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
LIMITS = Limits(max_requests=64, draft_tokens=7, max_model_len=32761, page_size=64)
STRATEGIES = ("uniform", "flatten", "paired", "varlen")


def lengths(seed, requests, uniform):
    """Draw query and KV lengths, zero-length requests among them."""
    draw = random.Random(seed)
    query = [draw.choice([0, 8]) if uniform else draw.randint(0, 8) for _ in range(requests)]
    return query, [draw.randint(length, LIMITS.max_kv_len) if length else 0 for length in query]


@pytest.mark.parametrize("requests", [1, 3, 64])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_captured_build_replays_with_other_lengths(kit, strategy, requests):
    """Values equal the reference after every replay, from poisoned buffers."""
    uniform = strategy == "uniform"
    made = kit.builders[strategy]
    options = {"device": kit.device, "limits": LIMITS}
    kernel = made(
        strategy,
        **options,
        backend="triton",
        schedule=TailHeavySchedule(LIMITS, "cuda", 132, backend="triton"),
    )
    reference = made(
        strategy, **options, backend="torch", schedule=TailHeavySchedule(LIMITS, "cuda", 132, backend="torch")
    )
    query, seq_lens = lengths(0, requests, uniform)
    batch = kit.batch(seq_lens, query, 8 * requests, LIMITS, uniform=8 if uniform else None)
    kernel.build(batch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows = kernel.build(batch)
    for seed in range(1, 6):
        query, seq_lens = lengths(seed, requests, uniform)
        batch.query_start_loc.copy_(torch.tensor([0, *query]).cumsum(0))
        batch.seq_lens.copy_(torch.tensor(seq_lens))
        kit.poison(kernel)
        kit.poison(reference)
        graph.replay()
        kit.same(reference.build(batch), rows)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_build_neither_waits_nor_allocates(kit, strategy, refusing_waits):
    """Torch raises on any sync, and the allocator's counters stand still."""
    builder = kit.builders[strategy](strategy, LIMITS, kit.device, backend="triton")
    batch = kit.batch([900] * 4, [8] * 4, 32, LIMITS, uniform=8)
    builder.build(batch)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    with refusing_waits():
        builder.build(batch)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@pytest.mark.parametrize("rule", [HeadHeavySchedule, PairedUnitsSchedule])
def test_a_schedule_over_runs_equals_the_reference(kit, rule):
    """Up to 512 rows of runs, replayed by nobody: values only."""
    both = [rule(LIMITS, "cuda", 148, backend=backend) for backend in ("triton", "torch")]
    for seed in range(5):
        query, seq_lens = lengths(seed, 64, uniform=False)
        batch = kit.batch(seq_lens, query, 512, LIMITS)
        rows = kit.builders["varlen"]("varlen", LIMITS, "cuda", backend="torch").build(batch)
        kernel, reference = (s.build(rows.schedule_lens, rows.request_indices) for s in both)
        assert torch.equal(kernel, reference)


def test_page_offsets_past_2_31_on_the_device(kit):
    """A table whose rows lie 2^30 entries apart, 8 GiB of it (DeepGEMM #425)."""
    if torch.cuda.mem_get_info()[0] < 12 * 2**30:
        pytest.skip("needs 12 GiB of free device memory")
    limits = Limits(max_requests=3, draft_tokens=0, max_model_len=8, page_size=2)
    storage = torch.empty(2 * 2**30 + 4, dtype=torch.int32, device="cuda")
    table = torch.as_strided(storage, (3, 4), (2**30, 1))
    table.copy_(torch.arange(12).view(3, 4) + 100)
    small = kit.batch([8, 8, 8], [1, 1, 1], 3, limits)
    batch = type(small)(small.query_start_loc, small.seq_lens, table, 3, 3, 3, 1)
    builder = kit.builders["flatten"]("flatten", limits, "cuda", backend="triton")
    assert builder.build(batch).block_table.tolist() == table.tolist()
