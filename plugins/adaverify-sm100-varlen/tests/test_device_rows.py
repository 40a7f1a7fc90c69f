"""On the chip itself: captured row builders, replayed with lengths they were not captured with."""

from __future__ import annotations

from dataclasses import fields, replace
from importlib.metadata import EntryPoint

import pytest
import torch

from adaverify_contracts import DecodeBatch, DecodeRows, KernelLevel, KernelReport, Limits
from adaverify_metadata import VarlenRowBuilder
from adaverify_sm100_varlen import hooks
from adaverify_sm100_varlen.deep_gemm.versions import PINNED
from adaverify_sm100_varlen.schedule import make_schedule

pytestmark = pytest.mark.sm100

DEVICE = torch.device("cuda")
LIMITS = Limits(max_requests=64, draft_tokens=7, max_model_len=4089, page_size=64)
POISON = -77777
REPLAYS = 10_000
# One build for each contract: the schedule is ours, so none of them has to be installed.
VERSIONS = {"head": "2.6.1", "paired": PINNED, "newer": "2.8.2"}


def loaded(here, version):
    """Return the device's capability with this build of the library as the one that was found."""
    report = KernelReport("deep-gemm-varlen", version, KernelLevel.EXECUTED, "set by the test")
    others = tuple(kernel for kernel in here.kernels if kernel.name != report.name)
    return replace(here, kernels=(*others, report))


def pair(here, version):
    """Return the strategy's builder and the same layout built by torch operations."""
    varlen, _ = hooks.adaverify_register_decode_strategies()
    capability = loaded(here, version)
    contract = hooks.contract_of(capability)
    schedule = make_schedule(contract, LIMITS, DEVICE, here.processors, backend="torch")
    oracle = VarlenRowBuilder("varlen", LIMITS, DEVICE, backend="torch", schedule=schedule)
    return varlen.allocate(LIMITS, DEVICE, capability), oracle


def tensors(rows: DecodeRows):
    for field in fields(DecodeRows):
        value = getattr(rows, field.name)
        if isinstance(value, torch.Tensor):
            yield field.name, value


def rewrite(batch: DecodeBatch, query: torch.Tensor, context: torch.Tensor):
    """Put other device lengths behind the stale host ones."""
    batch.query_start_loc[1:].copy_(query.cumsum(0))
    batch.seq_lens.copy_(torch.where(query > 0, context, 0))


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
@pytest.mark.parametrize("requests", [1, 3, 64])
def test_a_captured_build_replays_from_poison_with_other_lengths(kit, here, requests, version):
    """Every field bit for bit, the schedule of the same graph included, over poisoned buffers."""
    batch = kit.batch([8] * requests, [100] * requests, 8 * requests, LIMITS, device=DEVICE)
    builder, reference = pair(here, version)
    replay, rows = kit.capture(lambda: builder.build(batch))
    made = torch.Generator().manual_seed(requests)
    for step in range(8):
        query = torch.randint(0, 9, (requests,), generator=made)
        if step < 2:
            query[:] = 8 * (step == 0)
        context = query + torch.randint(0, 4089, (requests,), generator=made)
        rewrite(batch, query.to(DEVICE), context.to(DEVICE))
        for tensor in (*builder.buffers.values(), *reference.buffers.values()):
            tensor.fill_(POISON)
        replay()
        want = dict(tensors(reference.build(batch)))
        for field, value in tensors(rows):
            assert torch.equal(value, want[field]), (requests, step, field)


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
def test_ten_thousand_replays_without_a_wrong_row(kit, here, version):
    """Random ragged batches; every field is compared on the device, and wrong elements are summed there."""
    requests = LIMITS.max_requests
    batch = kit.batch([8] * requests, [100] * requests, 8 * requests, LIMITS, device=DEVICE)
    builder, reference = pair(here, version)
    replay, rows = kit.capture(lambda: builder.build(batch))
    made = torch.Generator(device=DEVICE).manual_seed(5)
    shape = (REPLAYS, requests)
    query = torch.randint(0, 9, shape, generator=made, device=DEVICE, dtype=torch.int32)
    # Now and then nobody, everybody, and one alone.
    query[::97] = 0
    query[1::97] = 8
    query[2::97, 1:] = 0
    context = query + torch.randint(0, 4089, shape, generator=made, device=DEVICE, dtype=torch.int32)
    seq = torch.where(query > 0, context, 0)
    starts = query.cumsum(1, dtype=torch.int32)
    names = [field for field, _ in tensors(rows)]
    wrong = torch.zeros(len(names), dtype=torch.int64, device=DEVICE)
    total = torch.zeros((), dtype=torch.int64, device=DEVICE)

    def judge():
        want = dict(tensors(reference.build(batch)))
        wrong.add_(torch.stack([(value != want[field]).sum() for field, value in tensors(rows)]))
        total.add_(batch.query_start_loc[-1])

    # The oracle is captured too: eager, its launches alone would take most of a minute.
    judge_again, _ = kit.capture(judge)
    # Tables start equal: columns that a build does not write keep what they hold.
    for tensor in (wrong, total, *builder.buffers.values(), *reference.buffers.values()):
        tensor.zero_()
    for step in range(REPLAYS):
        batch.query_start_loc[1:].copy_(starts[step])
        batch.seq_lens.copy_(seq[step])
        replay()
        judge_again()
    assert dict(zip(names, wrong.tolist(), strict=True)) == dict.fromkeys(names, 0)
    assert int(total) == int(query.sum())


def test_the_judge_of_the_replays_sees_a_wrong_row(kit, here):
    """One length changed behind the builder's back is one wrong element."""
    batch = kit.batch([8] * 3, [100] * 3, 24, LIMITS, device=DEVICE)
    builder, reference = pair(here, PINNED)
    rows = builder.build(batch)
    rows.row_lens[5, 0] += 1
    want = dict(tensors(reference.build(batch)))
    wrong = {field: int((value != want[field]).sum()) for field, value in tensors(rows)}
    assert {field: count for field, count in wrong.items() if count} == {"row_lens": 1}


def test_this_device_selects_these_strategies(here):
    """Loaded by entry point, probed for real."""
    from adaverify_runtime import PluginSettings, load_plugins
    from adaverify_runtime.selection import select_strategies

    names = (
        "adaverify_capability",
        "adaverify_reference",
        "adaverify_sm90_flatten",
        "adaverify_sm100_varlen",
    )
    points = [EntryPoint(name, f"{name}.hooks", "adaverify") for name in names]
    plugins = load_plugins(PluginSettings(), entry_points=points)
    found = select_strategies(plugins, here, LIMITS, "adaptive", use_graphs=True)
    assert (found.ragged.name, found.uniform.name) == ("varlen", "uniform-varlen")
