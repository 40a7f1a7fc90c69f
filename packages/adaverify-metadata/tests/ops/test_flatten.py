"""The flatten strategy on batches worked by hand."""

from __future__ import annotations

import pytest

from adaverify_contracts import Limits
from adaverify_metadata import flatten_rows

LIMITS = Limits(max_requests=4, draft_tokens=3, max_model_len=13, page_size=4)


def test_the_worked_example(kit):
    """Seq_lens [10, 7, 12, 0], query lengths [3, 1, 4, 0], 10 padded rows (design section 6)."""
    rows = flatten_rows(kit.batch([10, 7, 12, 0], [3, 1, 4, 0], 10, LIMITS), LIMITS)
    assert rows.row_lens.flatten().tolist() == [8, 9, 10, 7, 9, 10, 11, 12, 0, 0]
    assert rows.schedule_lens.flatten().tolist() == [8, 9, 10, 7, 9, 10, 11, 12, 1, 1]
    assert rows.row_request.tolist() == [0, 0, 0, 1, 2, 2, 2, 2, 12, 13]
    assert rows.row_token.flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 7, -1, -1]
    assert rows.token_slot.tolist() == list(range(10))
    assert rows.block_table[:4].tolist() == [[1, 2, 0, 0], [1, 2, 3, 0], [1, 2, 3, 0], [5, 6, 0, 0]]
    assert rows.request_indices is None


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_each_row_is_compressed_not_its_request(kit, backend):
    """Ratio 4, KV length 10, 4 tokens: rows see 7, 8, 9, 10 tokens, so 1, 2, 2, 2 entries."""
    limits = Limits(max_requests=1, draft_tokens=3, max_model_len=13, page_size=4, compress_ratio=4)
    builder = kit.builders["flatten"]("flatten", limits, kit.device, backend=backend)
    rows = builder.build(kit.batch([10], [4], 4, limits))
    assert rows.row_lens.flatten().tolist() == [1, 2, 2, 2]


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize(("rank", "expected"), [(0, [4, 4, 4, 5]), (1, [3, 4, 4, 4])])
def test_each_row_is_localised_not_its_request(kit, backend, rank, expected):
    """Two ranks, two positions a turn: of 7, 8, 8, 9 positions rank 0 holds 0 1 4 5 8, rank 1 2 3 6 7."""
    limits = Limits(
        max_requests=2,
        draft_tokens=2,
        max_model_len=13,
        page_size=4,
        context_parallel_size=2,
        context_parallel_rank=rank,
        context_parallel_interleave=2,
    )
    builder = kit.builders["flatten"]("flatten", limits, kit.device, backend=backend)
    rows = builder.build(kit.batch([8, 9], [2, 2], 4, limits))
    assert rows.row_lens.flatten().tolist() == expected
