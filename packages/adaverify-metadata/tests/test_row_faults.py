"""Faults of rows and schedules as they broke in public, with the reports' own numbers."""

from __future__ import annotations

import pytest
import torch

from adaverify_contracts import LayoutError, Limits
from adaverify_metadata import check_batch, check_rows, flatten_rows, paired_rows, schedule_tail_heavy
from adaverify_metadata.schedule import TailHeavySchedule

STRATEGIES = ["uniform", "flatten", "paired", "varlen"]


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_112_rows_of_7_requests_are_all_in_range(kit, strategy, backend):
    """7 requests x 16 = 112 rows: illegal address with graphs on, cause unknown (dflash #146).

    Every row, the padding of a graph of 128 included, has valid metadata: lengths, pages, ids, both maps.
    """
    computed = [365, 518, 574, 365, 413, 432, 440]
    limits = Limits(max_requests=8, draft_tokens=15, max_model_len=600, page_size=64)
    builder = kit.builders[strategy](strategy, limits, kit.device, backend=backend)
    batch = kit.batch([*(c + 16 for c in computed), 0], [16] * 7 + [0], 128, limits, uniform=16)
    rows = builder.build(batch)
    check_batch(batch, limits, num_pages=1 + 8 * limits.table_width)
    check_rows(rows, batch)
    kit.check(rows, strategy, batch, limits)
    assert int(rows.row_lens.min()) >= 0
    assert int(rows.row_lens.max()) == 574 + 16
    assert int(rows.schedule_lens.min()) >= 1
    assert bool((rows.block_table >= 0).all())


@pytest.mark.parametrize("slots", [1, 48, 78, 132, 148])
def test_the_schedule_has_a_row_more_than_the_device_has_slots(kit, slots):
    """48 SMs give (49, 2); a buffer of another size is read past its end (vllm #53635)."""
    limits = Limits(max_requests=4, draft_tokens=1, max_model_len=600, page_size=64)
    lens = torch.tensor([[5], [599], [0], [1]], dtype=torch.int32, device=kit.device)
    assert schedule_tail_heavy(lens, slots).shape == (slots + 1, 2)
    for backend in ("torch", "triton"):
        builder = TailHeavySchedule(limits, kit.device, slots, backend=backend)
        assert builder.schedule.shape == builder.build(lens).shape == (slots + 1, 2)


@pytest.mark.parametrize("drafts", range(8))
def test_every_k_has_rows_of_one_token(kit, drafts):
    """K = 2 makes three tokens a request, which a kernel of 1, 2 or 4 asserts on (vllm #43457, #52164)."""
    limits = Limits(max_requests=3, draft_tokens=drafts, max_model_len=40, page_size=4)
    length = drafts + 1
    rows = flatten_rows(kit.batch([20, 30, 40], [length] * 3, 3 * length, limits), limits)
    assert (rows.rows, rows.tokens_per_row) == (3 * length, 1)
    expected = [seq - length + 1 + j for seq in (20, 30, 40) for j in range(length)]
    assert rows.row_lens.flatten().tolist() == expected


@pytest.mark.parametrize("length", [1, 3, 5, 7])
def test_the_odd_half_of_a_pair_is_masked(kit, length):
    """next_n 3 and 1 request, 2 atoms of 2: the odd half read out of bounds (DeepGEMM #324)."""
    limits = Limits(max_requests=1, draft_tokens=6, max_model_len=20, page_size=4)
    rows = paired_rows(kit.batch([20], [length], length, limits), limits)
    assert rows.rows == (length + 1) // 2
    assert rows.row_lens[0].tolist() == [0, 20 - length + 1]
    assert rows.row_token[0].tolist() == [-1, 0]
    assert rows.schedule_lens[0].tolist()[0] == 1
    assert rows.row_lens.flatten().tolist()[1:] == list(range(20 - length + 1, 21))
    assert int(rows.block_table.min()) >= 0


def test_a_long_prompt_is_in_range_or_named(kit):
    """seq_len 131072 and one query: illegal access on long prompts (vllm #56771)."""
    limits = Limits(max_requests=1, draft_tokens=1, max_model_len=131071, page_size=64)
    pages = limits.table_width
    table = torch.arange(1, pages + 1)[None]
    batch = kit.batch([131072], [1], 1, limits, table=table)
    check_batch(batch, limits, num_pages=pages + 1)
    rows = flatten_rows(batch, limits)
    check_rows(rows, batch)
    assert rows.row_lens.tolist() == [[131072]]
    assert rows.block_table.tolist() == table.tolist()
    assert len(table[0]) == 2048
    with pytest.raises(LayoutError, match=r"seq_lens of request 0.*131073"):
        check_batch(kit.batch([131073], [1], 1, limits, table=table), limits)
    with pytest.raises(LayoutError, match=r"block_table\[0, 2047\]"):
        check_batch(batch, limits, num_pages=pages)
