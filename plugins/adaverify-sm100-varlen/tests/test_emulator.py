"""Hundreds of ragged batches: each (row, split) once, and logits equal to the float32 reference."""

from dataclasses import replace

import pytest
import torch

from adaverify_sm100_varlen.deep_gemm.versions import CONTRACTS, HEAD, NEWER, PAIRED
from adaverify_sm100_varlen.emulator import emulate_logits, walk
from adaverify_sm100_varlen.schedule import reference_schedule

# The first number is of the default tests; nox -s slow goes on with other batches.
BATCHES = [150, pytest.param(700, marks=pytest.mark.slow)]


def ragged(made, longest):
    """Runs of 0 to 8 rows and lengths 0 included; padding rows with ids of their own at the end."""
    count = int(torch.randint(1, 6, (), generator=made))
    query = torch.randint(0, 9, (count,), generator=made)
    ends = torch.randint(0, longest, (count,), generator=made)
    ids = torch.arange(count).repeat_interleave(query)
    back = query.cumsum(0)[ids] - 1 - torch.arange(len(ids))
    padding = int(torch.randint(0, 4, (), generator=made)) + (len(ids) == 0)
    rows = len(ids) + padding
    indices = torch.cat([ids, count + torch.arange(len(ids), rows)]).int()
    lens = torch.cat([(ends[ids] - back).clamp(min=0), torch.zeros(padding, dtype=torch.int64)]).int()
    return lens, indices


@pytest.mark.parametrize("batches", BATCHES)
@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_every_split_once_and_the_logits_of_the_reference(contract, batches):
    made = torch.Generator().manual_seed(batches)
    split, page, heads, dim = 8, 4, 2, 8
    for number in range(batches):
        lens, indices = ragged(made, 100)
        slots = int(torch.randint(1, 20, (), generator=made))
        small = replace(contract, split=split)
        schedule = reference_schedule(small, lens.clamp(min=1)[:, None], slots, indices)
        tasks = walk(small, schedule, lens, indices, heads=64)
        assert not len(tasks.runaways), number
        runs = torch.unique_consecutive(indices, return_counts=True)[1]
        ends = lens[runs.cumsum(0) - 1].repeat_interleave(runs)
        if small.rule == "paired-units":
            within = torch.arange(len(lens)) - (runs.cumsum(0) - runs).repeat_interleave(runs)
            closes = runs.cumsum(0).repeat_interleave(runs) - 1
            ends = lens[torch.minimum(torch.arange(len(lens)) + 1 - within % 2, closes)]
        want = (torch.arange(20) * split < ends[:, None]).long()
        assert torch.equal(tasks.visits(len(lens), 20), want), number
        q = torch.randn(len(lens), heads, dim, generator=made)
        codes, scales = torch.randn(30, page, dim, generator=made), torch.rand(30, page, generator=made)
        weights = torch.randn(len(lens), heads, generator=made)
        table = torch.randint(0, 30, (int(indices.max()) + 1, 25), generator=made)[indices.long()].int()
        got = emulate_logits(tasks, q, codes, scales, weights, table, 100, split)[:, :100]
        keys, scale = codes[table.long()].flatten(1, 2), scales[table.long()].flatten(1, 2)
        right = torch.einsum("mhc,mh->mc", torch.einsum("mhd,mcd->mhc", q, keys).relu(), weights) * scale
        valid = torch.arange(100) < lens[:, None]
        assert torch.allclose(got[valid], right[valid], rtol=1e-5, atol=1e-5), number


def test_the_worked_examples():
    """deepgemm sections 8.2 and 8.3."""
    lens = torch.tensor([598, 599, 600, 0, 1000, 1001], dtype=torch.int32)[:, None]
    ids = torch.tensor([0, 0, 0, 1, 2, 2], dtype=torch.int32)
    pairs = {
        HEAD: [[0, 0], [0, 1], [4, 0], [4, 2], [6, 0]],
        PAIRED: [[0, 0], [0, 2], [2, 1], [4, 1], [6, 0]],
        NEWER: [[0, 0], [0, 1], [4, 0], [4, 1], [6, 0]],
    }
    for contract, want in pairs.items():
        assert reference_schedule(contract, lens, 4, ids).tolist() == want
    tasks = walk(HEAD, torch.tensor(pairs[HEAD]), lens, ids)
    columns = torch.stack([tasks.slot, tasks.first_row, tasks.rows, tasks.split], dim=1)
    found = [tuple(task) for task in columns.tolist()]
    assert found[:6] == [(0, 0, 2, 0), (0, 2, 1, 0), (1, 0, 2, 1), (1, 0, 2, 2), (1, 2, 1, 1), (1, 2, 1, 2)]


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_a_stale_schedule_runs_away(contract):
    """Built for 1024, run with 256 (deepgemm 9d)."""
    ids = torch.zeros(1, dtype=torch.int32)
    schedule = reference_schedule(contract, torch.tensor([[2048]], dtype=torch.int32), 4, ids)
    assert len(walk(contract, schedule, torch.tensor([256]), ids).runaways)
