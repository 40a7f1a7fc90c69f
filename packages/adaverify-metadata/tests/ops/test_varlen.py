"""The varlen strategy on batches worked by hand."""

from __future__ import annotations

from adaverify_contracts import Limits
from adaverify_metadata import varlen_rows

LIMITS = Limits(max_requests=4, draft_tokens=3, max_model_len=13, page_size=4)


def test_the_worked_example(kit):
    """Flattened lengths, ids equal exactly within a request, tables as long as the request needs."""
    rows = varlen_rows(kit.batch([10, 7, 12, 0], [3, 1, 4, 0], 10, LIMITS), LIMITS)
    assert rows.row_lens.flatten().tolist() == [8, 9, 10, 7, 9, 10, 11, 12, 0, 0]
    assert rows.request_indices.tolist() == [0, 0, 0, 1, 2, 2, 2, 2, 12, 13]
    assert rows.block_table[:4].tolist() == [[1, 2, 3, 0], [1, 2, 3, 0], [1, 2, 3, 0], [5, 6, 0, 0]]


def test_neighbouring_padding_rows_are_never_one_run(kit):
    """Equal neighbours would share the first row's pages (deepgemm section 9 g)."""
    rows = varlen_rows(kit.batch([4], [1], 6, LIMITS), LIMITS)
    assert len(set(rows.request_indices.tolist())) == 6
