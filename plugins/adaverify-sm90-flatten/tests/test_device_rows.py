"""On the chip itself: captured row builders, replayed with lengths they were not captured with."""

from __future__ import annotations

from dataclasses import fields
from importlib.metadata import EntryPoint

import pytest
import torch

from adaverify_contracts import DecodeBatch, DecodeRows, Limits
from adaverify_metadata import FlattenRowBuilder, PairedRowBuilder, TailHeavySchedule
from adaverify_sm90_flatten import hooks
from adaverify_sm90_flatten.uniform import NativeUniformRowBuilder

pytestmark = pytest.mark.sm90

LIMITS = Limits(max_requests=64, draft_tokens=7, max_model_len=4089, page_size=64)
POISON = -77777
REPLAYS = 10_000


def allocate(name, here):
    found = {item.name: item for item in hooks.adaverify_register_decode_strategies()}
    return found[name].allocate(LIMITS, torch.device("cuda"), here)


def oracle(name, here):
    """The same layout built by torch operations."""
    made = {
        "flatten": FlattenRowBuilder,
        "paired": PairedRowBuilder,
        "uniform-native": NativeUniformRowBuilder,
    }
    schedule = TailHeavySchedule(LIMITS, "cuda", here.processors, backend="torch")
    return made[name](name, LIMITS, "cuda", backend="torch", schedule=schedule)


def tensors(rows: DecodeRows):
    for field in fields(DecodeRows):
        value = getattr(rows, field.name)
        if isinstance(value, torch.Tensor):
            yield field.name, value


def capture(builder, batch):
    builder.build(batch)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows = builder.build(batch)
    return graph, rows


def rewrite(batch: DecodeBatch, query: torch.Tensor, context: torch.Tensor):
    """Put other device lengths behind the stale host ones."""
    batch.query_start_loc[0] = 0
    batch.query_start_loc[1:].copy_(query.cumsum(0))
    batch.seq_lens.copy_(torch.where(query > 0, context, 0))


@pytest.mark.parametrize(
    ("name", "uniform"), [("flatten", None), ("paired", None), ("uniform-native", 2), ("uniform-native", 7)]
)
@pytest.mark.parametrize("requests", [1, 3, 64])
def test_a_captured_build_replays_from_poison_with_other_lengths(kit, here, name, uniform, requests):
    """Every field bit for bit, the schedule of the same graph included, over poisoned buffers."""
    longest = uniform or 8
    batch = kit.batch(
        [longest] * requests, [100] * requests, 8 * requests, LIMITS, device="cuda", uniform=uniform
    )
    builder, reference = allocate(name, here), oracle(name, here)
    graph, rows = capture(builder, batch)
    made = torch.Generator().manual_seed(requests)
    for step in range(8):
        query = torch.randint(0, 9, (requests,), generator=made)
        if uniform or step == 0:
            query = (query > 2 * (step > 0)) * longest
        if step == 1:
            query.zero_()
        context = query + torch.randint(0, 4089, (requests,), generator=made)
        rewrite(batch, query.cuda(), context.cuda())
        for tensor in (*builder.buffers.values(), *reference.buffers.values()):
            tensor.fill_(POISON)
        graph.replay()
        want = dict(tensors(reference.build(batch)))
        for field, value in tensors(rows):
            assert torch.equal(value, want[field]), (name, requests, step, field)


@pytest.mark.parametrize("name", ["flatten", "paired"])
def test_ten_thousand_replays_without_a_wrong_row(kit, here, name):
    """Random ragged batches; every field is compared on the device, and wrong elements are summed there."""
    requests = LIMITS.max_requests
    batch = kit.batch([8] * requests, [100] * requests, 8 * requests, LIMITS, device="cuda")
    builder, reference = allocate(name, here), oracle(name, here)
    graph, rows = capture(builder, batch)
    made = torch.Generator(device="cuda").manual_seed(5)
    shape = (REPLAYS, requests)
    query = torch.randint(0, 9, shape, generator=made, device="cuda", dtype=torch.int32)
    # Now and then nobody, everybody, and one alone.
    query[::97] = 0
    query[1::97] = 8
    query[2::97, 1:] = 0
    context = query + torch.randint(0, 4089, shape, generator=made, device="cuda", dtype=torch.int32)
    seq = torch.where(query > 0, context, 0)
    starts = query.cumsum(1, dtype=torch.int32)
    names = [field for field, _ in tensors(rows)]
    # The oracle is captured too: eager, its launches alone would take most of a minute.
    with torch.cuda.stream(torch.cuda.Stream()):
        reference.build(batch)
    torch.cuda.synchronize()
    wrong = torch.zeros(len(names), dtype=torch.int64, device="cuda")
    total = torch.zeros((), dtype=torch.int64, device="cuda")
    judge = torch.cuda.CUDAGraph()
    with torch.cuda.graph(judge):
        want = dict(tensors(reference.build(batch)))
        wrong += torch.stack([(value != want[field]).sum() for field, value in tensors(rows)])
        total += batch.query_start_loc[-1]
    wrong.zero_()
    total.zero_()
    # Tables start equal: columns that a build does not write keep what they hold.
    for tensor in (*builder.buffers.values(), *reference.buffers.values()):
        tensor.zero_()
    for step in range(REPLAYS):
        batch.query_start_loc[1:].copy_(starts[step])
        batch.seq_lens.copy_(seq[step])
        graph.replay()
        judge.replay()
    assert dict(zip(names, wrong.tolist(), strict=True)) == dict.fromkeys(names, 0)
    assert int(total) == int(query.sum())


def test_the_judge_of_the_replays_sees_a_wrong_row(kit, here):
    """One length changed behind the builder's back is one wrong element."""
    batch = kit.batch([8] * 3, [100] * 3, 24, LIMITS, device="cuda")
    builder, reference = allocate("flatten", here), oracle("flatten", here)
    rows = builder.build(batch)
    rows.row_lens[5, 0] += 1
    want = dict(tensors(reference.build(batch)))
    wrong = {field: int((value != want[field]).sum()) for field, value in tensors(rows)}
    assert {field: count for field, count in wrong.items() if count} == {"row_lens": 1}


def test_this_device_selects_these_strategies(here):
    """Loaded by entry point, probed for real."""
    from adaverify_runtime import PluginSettings, load_plugins
    from adaverify_runtime.selection import select_strategies

    names = ("adaverify_capability", "adaverify_reference", "adaverify_sm90_flatten")
    points = [EntryPoint(name, f"{name}.hooks", "adaverify") for name in names]
    plugins = load_plugins(PluginSettings(), entry_points=points)
    found = select_strategies(plugins, here, LIMITS, "adaptive", use_graphs=True)
    assert (found.ragged.name, found.uniform.name) == ("flatten", "uniform-native")
