"""Each kernel against its torch form, over poisoned buffers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adaverify_vllm.assignment import BatchAssigner
from adaverify_vllm.assignment.reference import HOPELESS, assign_boundaries
from adaverify_vllm.rows.launch import write_rows
from adaverify_vllm.rows.reference import write_rows_reference

POISON = -77777


def confidences(rng, slots, drafts):
    """Half of the draws on a coarse grid, so that survivals tie; some no confidences at all."""
    drawn = rng.uniform(-0.1, 1.1, (slots, drafts))
    if rng.random() < 0.5:
        drawn = rng.integers(0, 5, (slots, drafts)) / 4
    drawn[rng.random((slots, drafts)) < 0.02] = np.nan
    return torch.from_numpy(drawn.astype(np.float32))


@pytest.mark.parametrize(
    ("slots", "drafts", "bonus"),
    [
        (1, 1, 1),
        (5, 3, 2),
        (12, 7, 1),
        # Each launch takes the interpreter a third of a second.
        pytest.param(24, 7, 1, marks=pytest.mark.slow),
        pytest.param(17, 15, 1, marks=pytest.mark.slow),
    ],
)
def test_the_assignment_is_that_of_the_torch_form(device, slots, drafts, bonus):
    """Admitted, offsets, boundaries, tail and the relay's column, for budgets past both ends."""
    rng = np.random.default_rng(slots)
    table = torch.zeros((slots, drafts + 2), device=device)
    table[:, :drafts] = confidences(rng, slots, drafts)
    buffer = torch.empty(slots + 1, dtype=torch.int32, device=device)
    made = BatchAssigner(table, buffer, drafts=drafts, bonus=bonus, backend="triton")
    for count in sorted({slots // 2 or 1, slots}):
        rows = torch.from_numpy(rng.permutation(slots)[:count].astype(np.int64)).to(device)
        scheduled = rng.integers(0, drafts + 1, count).astype(np.int32)
        scheduled = scheduled + HOPELESS * (rng.random(count) < 0.2)
        certain = rng.integers(1, 40, count).astype(np.int32)
        most = int((scheduled % HOPELESS).sum())
        for budget in sorted({-3, most // 3, most + 5}):
            buffer.fill_(POISON)
            table[:, drafts + 1] = POISON
            admitted_total = max(0, min(budget, most))
            total = int(certain.sum()) + admitted_total
            made.stage(scheduled, certain)
            made.assign(rows, budget, total)
            words = torch.from_numpy(scheduled.astype(np.int32)).to(device)
            want = assign_boundaries(
                table[:, :drafts], rows, words, torch.from_numpy(certain).to(device), budget, bonus
            )
            assert torch.equal(made.admitted[:count], want.admitted)
            assert torch.equal(made.cu_num_logits[: count + 1], want.cu_num_logits)
            assert torch.equal(buffer[: count + 1], want.query_start_loc)
            assert (buffer[count + 1 :] == total).all()
            assert torch.equal(table[rows, drafts + 1].int(), want.admitted)


def rows_case(rng, device, requests, width, padding):
    lengths = rng.integers(0, 9, requests)
    boundaries = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)).to(device)
    seq_lens = torch.from_numpy((lengths + rng.integers(0, 500, requests)).astype(np.int32)).to(device)
    table = torch.from_numpy(rng.integers(0, 10**6, (requests, width)).astype(np.int32)).to(device)
    tokens = int(lengths.sum()) + padding
    return boundaries, seq_lens, table, tokens


@pytest.mark.parametrize("padding", [0, 1, 5])
@pytest.mark.parametrize(("requests", "width"), [(1, 1), (3, 5), (4, 17), (9, 40)])
def test_the_rows_are_those_of_the_torch_form(device, requests, width, padding):
    """Every column of every row, untouched ones included."""
    rng = np.random.default_rng(requests * 10 + padding)
    boundaries, seq_lens, table, tokens = rows_case(rng, device, requests, width, padding)
    if not tokens:
        pytest.skip("no token was drawn")
    found = []
    for write in ("torch", "triton"):
        outputs = (
            torch.full((tokens,), POISON, dtype=torch.int32, device=device),
            torch.full((tokens, width + 3), POISON, dtype=torch.int32, device=device),
            torch.full((tokens,), POISON, dtype=torch.int32, device=device),
        )
        if write == "torch":
            write_rows_reference(boundaries, seq_lens, table, outputs, 8)
        else:
            write_rows(boundaries, seq_lens, table, outputs, requests)
        found.append(outputs)
    for want, got in zip(*found, strict=True):
        assert torch.equal(want, got)


def test_the_rows_of_the_documented_example(device):
    """seq_lens [10, 7, 12, 0], query lengths [3, 1, 4, 0], 10 padded rows (design section 6)."""
    boundaries = torch.tensor([0, 3, 4, 8, 8], dtype=torch.int32, device=device)
    seq_lens = torch.tensor([10, 7, 12, 0], dtype=torch.int32, device=device)
    table = torch.arange(4, dtype=torch.int32, device=device)[:, None].expand(4, 3).contiguous() + 1
    outputs = tuple(
        torch.full(shape, 9, dtype=torch.int32, device=device) for shape in ((10,), (10, 3), (10,))
    )
    write_rows(boundaries, seq_lens, table, outputs, 4)
    lens, pages, ones = outputs
    assert lens.tolist() == [8, 9, 10, 7, 9, 10, 11, 12, 0, 0]
    assert pages[:, 0].tolist() == [1, 1, 1, 2, 3, 3, 3, 3, 0, 0]
    assert pages[8:, 1:].tolist() == [[9, 9]] * 2
    assert ones.tolist() == [1] * 10
