"""On a GPU: pick, advance and lookup of one step in one captured graph, replayed over many states."""

from __future__ import annotations

import pytest
import torch

from adaverify_contracts import Limits
from adaverify_engine.acceptance import target_law
from adaverify_engine.ops.advance.launch import advance
from adaverify_engine.ops.lookup.launch import launch_for, lookup
from adaverify_engine.ops.pick.launch import Pick

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def capture(step):
    """Return a graph of ``step`` after one run that compiles it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


@pytest.mark.parametrize(
    ("rows", "drafts", "longest", "vocabulary"),
    [(1, 7, 300, 49152), (16, 7, 600, 49152), (16, 0, 200, 100), (64, 15, 8192, 1000), (5, 3, 40, 151_936)],
)
def test_a_captured_step_replays_over_many_states(step_kit, rows, drafts, longest, vocabulary):
    """State, picks and proposals equal the references after every replay, from poisoned outputs.

    A draw may differ where its coin lies on a rounding boundary; such a state is compared up to the picks.
    """
    sizes = {"rows": rows, "slots": rows + 2, "drafts": drafts, "longest": longest, "vocabulary": vocabulary}
    sizes["tokens"] = rows * (drafts + 1) + 2
    pick = Pick(sizes["tokens"], vocabulary, step_kit.device)
    plain = Pick(sizes["tokens"], vocabulary, step_kit.device, backend="torch")
    parameters = launch_for(Limits(rows + 2, drafts, longest, 16))
    live = step_kit.make(0, **sizes)

    def step():
        live.pick(pick)
        live.advance(advance, "triton")
        live.lookup(lookup, launch=parameters)

    graph = capture(step)
    compared = 0
    count = 40 if vocabulary * rows < 1_000_000 and longest < 1000 else 12
    for seed in range(count):
        reference = step_kit.make(seed, **sizes)
        live.copy_(reference)
        live.poison()
        graph.replay()
        torch.cuda.synchronize()
        reference.pick(plain)
        if step_kit.same_picks(live, reference):
            continue
        reference.advance(advance, "torch")
        reference.lookup(lookup, backend="torch")
        step_kit.same_state(live, reference)
        compared += 1
    assert compared >= 0.9 * count


def test_a_step_neither_waits_nor_allocates(step_kit, refusing_waits):
    """Torch raises on any sync, and the allocator's counters stand still."""
    state = step_kit.make(0, rows=16, slots=16, drafts=7, longest=500)
    pick = Pick(len(state.logits), 100, step_kit.device)

    def step():
        state.pick(pick)
        state.advance(advance, "triton")
        state.lookup(lookup)

    step()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    with refusing_waits():
        step()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 0.9), (1.5, 0.5), (3.0, 0.99)])
def test_draws_follow_the_target_law_over_a_large_vocabulary(step_kit, temperature, top_p):
    """Coins (i + 1/2) / N give every token N x its probability times, to within one."""
    count, device = 4096, step_kit.device
    logits = (torch.randn(1, 49152, generator=torch.Generator().manual_seed(1)) * 3).to(device)
    ints = {"dtype": torch.int32, "device": device}
    noise = torch.zeros(count, 2, 2, dtype=torch.float64, device=device)
    noise[:, 1, 1] = (torch.arange(count, device=device, dtype=torch.float64) + 0.5) / count
    token, gap, finite = torch.empty(count, **ints), torch.empty(count, device=device), torch.empty(1, **ints)
    rows = torch.arange(count, **ints)
    Pick(count, 49152, device)(
        logits.expand(count, -1),
        rows,
        torch.zeros(count, **ints),
        rows,
        torch.ones(count, **ints),
        torch.full((count,), temperature, device=device),
        torch.full((count,), top_p, device=device),
        noise,
        token,
        gap,
        finite,
    )
    law = target_law(
        logits, torch.tensor([temperature], device=device), torch.tensor([top_p], device=device)
    )[0]
    counts = torch.bincount(token.long(), minlength=49152)
    assert (counts[law == 0] == 0).all()
    assert ((counts - count * law.double()).abs() <= 1.05).all()
    assert torch.equal(token, token.sort().values)
