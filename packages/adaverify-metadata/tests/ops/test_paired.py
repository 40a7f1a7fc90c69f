"""The paired strategy on batches worked by hand."""

from __future__ import annotations

import itertools

import pytest

from adaverify_contracts import Limits
from adaverify_metadata import paired_row_count, paired_rows

LIMITS = Limits(max_requests=4, draft_tokens=3, max_model_len=13, page_size=4)


def test_the_worked_example(kit):
    """The odd token sits in front with length 0 (design section 6, deepgemm section 4)."""
    rows = paired_rows(kit.batch([10, 7, 12, 0], [3, 1, 4, 0], 10, LIMITS), LIMITS)
    assert rows.row_lens.tolist() == [[0, 8], [9, 10], [0, 7], [9, 10], [11, 12], [0, 0], [0, 0]]
    assert rows.schedule_lens.tolist() == [[1, 8], [9, 10], [1, 7], [9, 10], [11, 12], [1, 1], [1, 1]]
    assert rows.row_token.tolist() == [[-1, 0], [1, 2], [-1, 3], [4, 5], [6, 7], [-1, -1], [-1, -1]]
    assert rows.row_request.tolist() == [0, 0, 1, 2, 2, 9, 10]
    assert rows.token_slot.tolist() == [1, 2, 3, 5, 6, 7, 8, 9, 13, 13]
    assert rows.block_table[:3].tolist() == [[1, 2, 0, 0], [1, 2, 3, 0], [5, 6, 0, 0]]


def test_the_row_count_holds_every_split_and_is_reached():
    """All splits of up to 7 tokens over up to 3 requests: never too few rows, and tight somewhere."""
    for tokens, requests in itertools.product(range(8), range(1, 4)):
        needed = [
            sum((length + 1) // 2 for length in split)
            for split in itertools.product(range(tokens + 1), repeat=requests)
            if sum(split) <= tokens
        ]
        assert max(needed) == paired_row_count(tokens, requests)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_a_padding_token_finds_the_empty_front_when_the_last_row_is_taken(kit, backend):
    """Three odd requests fill (6 + 3) // 2 = 4 rows with 5 tokens; token 5 points at slot 0, an empty one."""
    builder = kit.builders["paired"]("paired", LIMITS, kit.device, backend=backend)
    rows = builder.build(kit.batch([5, 5, 5], [1, 1, 3], 6, LIMITS))
    assert rows.row_token.tolist() == [[-1, 0], [-1, 1], [-1, 2], [3, 4]]
    assert rows.token_slot.tolist() == [1, 3, 5, 6, 7, 0]
