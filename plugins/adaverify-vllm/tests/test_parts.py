"""Placeholders, costs, assignment in its two host forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adaverify_contracts import LimitsError
from adaverify_vllm.assignment import BatchAssigner
from adaverify_vllm.assignment.host import admit_host
from adaverify_vllm.assignment.reference import HOPELESS, assign_boundaries
from adaverify_vllm.costs import curves_of, profile_runs, sizes_to_profile, table_of
from adaverify_vllm.placeholders import even_placeholders


@pytest.mark.parametrize("seed", range(30))
def test_placeholders_sum_to_the_budget_and_stay_within_the_drafts(seed):
    """Nobody gets more than was scheduled, and nobody much less than another who could have it."""
    rng = np.random.default_rng(seed)
    scheduled = rng.integers(0, 8, rng.integers(0, 9)).astype(np.int32)
    for budget in range(int(scheduled.sum()) + 1):
        found = even_placeholders(scheduled, budget)
        assert found.dtype == scheduled.dtype
        assert int(found.sum()) == budget
        assert (found >= 0).all() and (found <= scheduled).all()
        cut = found < scheduled
        if cut.any():
            assert int(found[cut].min()) >= int(found.max()) - 1


@pytest.mark.parametrize(
    ("captured", "most", "sizes"),
    [
        ([], 512, []),
        ([8], 8, [8]),
        ([8, 16], 64, [8, 16, 24, 32, 64]),
        ([8, 512], 512, [8, 512]),
        ([8, 300], 512, [8, 300, 450, 512]),
    ],
)
def test_sizes_to_profile_go_on_beyond_the_graphs(captured, most, sizes):
    assert sizes_to_profile(captured, most) == sizes


def test_each_size_is_profiled_five_times():
    assert [run["num_tokens"] for run in profile_runs([4, 8], 100)] == [4] * 5 + [8] * 5
    assert {run["context_len"] for run in profile_runs([4, 8], 100)} == {100}


class Sample:
    def __init__(self, forward, drafter, tokens, requests, full):
        self.forward_ms, self.drafter_ms = forward, drafter
        self.num_target_tokens, self.num_reqs, self.full_cudagraph = tokens, requests, full


def test_curves_are_medians_and_drafting_is_priced_from_graphs_only():
    samples = [Sample(t, 1.0, 8, 2, True) for t in (1.0, 9.0, 2.0)] + [Sample(50.0, 30.0, 64, 2, False)]
    drafting, forward = curves_of(samples)
    assert drafting == [(2, 0.001)]
    assert forward == [(8, 0.002), (64, 0.05)]


def test_the_price_jumps_where_graphs_end():
    """No line leads from the last graph to the first step without one."""
    table = table_of([], [(8, 0.001), (64, 0.002), (128, 0.010)], last=64, context=8192, facts={"a": 1})
    (curve,) = table.curves
    assert dict(zip(curve.tokens, curve.seconds, strict=True)) == {8: 0.001, 64: 0.002, 65: 0.010, 128: 0.010}


def batch(seed, slots=12, drafts=7):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, slots + 1))
    rows = rng.permutation(slots)[:count]
    table = torch.zeros((slots, drafts + 2))
    grid = rng.integers(0, 5, (slots, drafts)) / 4 if seed % 2 else rng.uniform(-0.1, 1.1, (slots, drafts))
    table[:, :drafts] = torch.from_numpy(grid.astype(np.float32))
    scheduled = rng.integers(0, drafts + 1, count).astype(np.int32)
    certain = rng.integers(1, 5, count).astype(np.int32)
    hopeless = (rng.random(count) < 0.2).astype(np.int32) * HOPELESS
    return table, torch.from_numpy(rows.astype(np.int64)), scheduled + hopeless, certain


@pytest.mark.parametrize("seed", range(20))
def test_numpy_and_torch_admit_the_same(seed):
    """Integer by integer, ties included, for every budget and beyond both ends."""
    table, rows, scheduled, certain = batch(seed)
    most = int((scheduled % HOPELESS).sum())
    for budget in {-1, 0, 1, most // 2, most - 1, most, most + 3}:
        want = assign_boundaries(
            table[:, :7], rows, torch.from_numpy(scheduled), torch.from_numpy(certain), budget, 1
        )
        found = admit_host(table.numpy()[rows.numpy(), :7], scheduled, budget)
        assert found.tolist() == want.admitted.tolist()
        assert int(found.sum()) == max(0, min(budget, most))


@pytest.mark.parametrize("bonus", [1, 2])
def test_the_boundaries_are_those_of_the_reference(bonus):
    """In vLLM's buffer, the tail filled, and the admitted counts where the relay takes them from."""
    table, rows, scheduled, certain = batch(4)
    buffer = torch.full((13,), -7, dtype=torch.int32)
    made = BatchAssigner(table, buffer, drafts=7, bonus=bonus, backend="torch")
    made.stage(scheduled, certain)
    made.assign(rows, 5, int(certain.sum()) + 5)
    want = assign_boundaries(
        table[:, :7], rows, torch.from_numpy(scheduled), torch.from_numpy(certain), 5, bonus
    )
    count = len(rows)
    assert torch.equal(made.cu_num_logits[: count + 1], want.cu_num_logits)
    assert torch.equal(buffer[: count + 1], want.query_start_loc)
    assert (buffer[count + 1 :] == int(certain.sum()) + 5).all()
    assert table[rows, 8].tolist() == want.admitted.tolist()


@pytest.mark.parametrize(
    ("slots", "drafts", "backend"), [(4, 7, "cuda"), (1025, 7, "triton"), (4, 16, "triton")]
)
def test_sizes_that_the_kernel_does_not_serve_are_refused(slots, drafts, backend):
    table = torch.zeros((slots, drafts + 2))
    with pytest.raises(LimitsError, match="cannot be made like this"):
        BatchAssigner(
            table, torch.zeros(slots + 1, dtype=torch.int32), drafts=drafts, bonus=1, backend=backend
        )
