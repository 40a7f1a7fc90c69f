"""On the chip itself: captured varlen rows, replayed with lengths they were not captured with."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from adaverify_capability import TRITON, probe
from adaverify_contracts import CapabilityError, DecodeBatch, DecodeRows, Limits
from adaverify_metadata import VarlenRowBuilder
from adaverify_sm100_varlen import hooks
from adaverify_sm100_varlen.schedule import make_schedule

pytestmark = pytest.mark.sm100
LIMITS = Limits(max_requests=64, draft_tokens=7, max_model_len=4089, page_size=64)


@pytest.fixture(scope="module")
def here():
    """Skip by the requirements that select the strategy."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    try:
        found = probe("cuda", [TRITON, *hooks.adaverify_register_probes()])
    except CapabilityError as error:
        pytest.skip(str(error))
    if unmet := hooks.BLACKWELL.unmet(found):
        pytest.skip("; ".join(unmet))
    return found


def tensors(rows: DecodeRows):
    for field in fields(DecodeRows):
        value = getattr(rows, field.name)
        if isinstance(value, torch.Tensor):
            yield field.name, value


@pytest.mark.parametrize("requests", [1, 3, 64])
def test_a_captured_build_replays_from_poison_with_other_lengths(here, requests):
    """Every field bit for bit, the schedule of the same graph included, behind stale host lengths."""
    (varlen,) = hooks.adaverify_register_decode_strategies()
    batch = DecodeBatch(
        query_start_loc=torch.arange(0, 8 * requests + 1, 8, dtype=torch.int32, device="cuda"),
        seq_lens=torch.full((requests,), 108, dtype=torch.int32, device="cuda"),
        block_table=torch.randperm(requests * LIMITS.table_width).int().view(requests, -1).cuda(),
        num_requests=requests,
        num_tokens=8 * requests,
        padded_tokens=8 * requests,
        max_query_len=8,
    )
    builder = varlen.allocate(LIMITS, torch.device("cuda"), here)
    schedule = make_schedule(hooks.contract_of(here), LIMITS, "cuda", here.processors, backend="torch")
    reference = VarlenRowBuilder("varlen", LIMITS, "cuda", backend="torch", schedule=schedule)
    builder.build(batch)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows = builder.build(batch)
    made = torch.Generator().manual_seed(requests)
    for step in range(100):
        query = torch.randint(0, 9, (requests,), generator=made) * (step != 1)
        context = query + torch.randint(0, 4089, (requests,), generator=made)
        batch.query_start_loc[1:].copy_(query.cumsum(0).cuda())
        batch.seq_lens.copy_(torch.where(query > 0, context, 0).cuda())
        for tensor in (*builder.buffers.values(), *reference.buffers.values()):
            tensor.fill_(-77777)
        graph.replay()
        want = dict(tensors(reference.build(batch)))
        for field, value in tensors(rows):
            assert torch.equal(value, want[field]), (requests, step, field)
