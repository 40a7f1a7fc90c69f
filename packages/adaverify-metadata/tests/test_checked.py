"""Checked mode names what would corrupt memory, before the kernel runs."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from adaverify_contracts import LayoutError, Limits
from adaverify_metadata import check_batch, check_rows, flatten_rows

LIMITS = Limits(max_requests=3, draft_tokens=2, max_model_len=14, page_size=4)


def change(batch, **fields):
    """Replace device values of a batch, keeping dtype and device."""
    made = {
        name: torch.tensor(value, dtype=torch.int32, device=batch.seq_lens.device)
        for name, value in fields.items()
    }
    return dataclasses.replace(batch, **made)


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("strategy", ["uniform", "flatten", "paired", "varlen"])
def test_a_sound_batch_passes(kit, strategy, backend):
    """Also with zero-length requests and padding."""
    builder = kit.builders[strategy](
        strategy, LIMITS, kit.device, backend=backend, checked=True, num_pages=13
    )
    batch = kit.batch([9, 16, 0], [2, 2, 0], 6, LIMITS, uniform=2)
    kit.check(builder.build(batch), strategy, batch, LIMITS)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"query_start_loc": [1, 3, 3, 5]}, "does not start at 0"),
        ({"query_start_loc": [0, 3, 2, 4]}, "query length of request 1"),
        ({"query_start_loc": [0, 4, 4, 4]}, "query length of request 0"),
        ({"query_start_loc": [0, 2, 2, 3]}, "disagree about the total"),
        ({"seq_lens": [9, 8, 1]}, "seq_lens of request 2"),
        ({"seq_lens": [17, 8, 9]}, "seq_lens of request 0"),
        ({"seq_lens": [-1, 8, 9]}, "seq_lens of request 0"),
        ({"block_table": [[1, 2, 13, 4], [1, 2, 3, 4], [5, 6, 7, 8]]}, r"block_table\[0, 2\]"),
        ({"block_table": [[1, 2, 3, 99], [1, -1, 3, 4], [5, 6, 7, 8]]}, r"block_table\[1, 1\]"),
    ],
)
def test_a_wrong_device_value_is_named(kit, fields, problem):
    """Totals, boundaries, lengths and page ids in use; columns that nobody reads may hold anything."""
    batch = kit.batch([9, 8, 9], [2, 0, 2], 6, LIMITS)
    check_batch(batch, LIMITS, num_pages=13)
    with pytest.raises(LayoutError, match=problem):
        check_batch(change(batch, **fields), LIMITS, num_pages=13)


def test_a_prompt_chunk_is_no_decode(kit):
    """A query longer than K + 1 belongs on the prefill path (vllm #50532)."""
    wide = Limits(max_requests=3, draft_tokens=5, max_model_len=11, page_size=4)
    with pytest.raises(LayoutError, match="prefill path"):
        check_batch(kit.batch([6], [6], 6, wide), LIMITS)


def test_a_padding_request_must_be_empty(kit):
    """Old lengths in the padding are not ordinary (vllm #47066)."""
    batch = dataclasses.replace(kit.batch([9, 9, 0], [2, 2, 0], 6, LIMITS), num_requests=2)
    check_batch(batch, LIMITS)
    with pytest.raises(LayoutError, match="padding request"):
        check_batch(change(batch, query_start_loc=[0, 2, 3, 4]), LIMITS)
    with pytest.raises(LayoutError, match="seq_lens of request 2"):
        check_batch(change(batch, seq_lens=[9, 9, 5]), LIMITS)


def test_a_uniform_claim_is_checked_on_the_device(kit):
    """Host says 2 for all, device says 1 and 3."""
    batch = change(kit.batch([9, 9], [2, 2], 4, LIMITS, uniform=2), query_start_loc=[0, 1, 4])
    with pytest.raises(LayoutError, match="not uniform"):
        check_batch(batch, LIMITS)


@pytest.mark.parametrize(
    ("field", "index", "value", "problem"),
    [
        ("row_request", 0, 3, "row_request"),
        ("row_request", 5, 3, "row_request"),
        ("token_slot", 1, 6, "token_slot"),
        ("token_slot", 1, 2, "inverse maps"),
        ("row_token", 5, 0, "row_request"),
    ],
)
def test_a_wrong_map_is_named(kit, field, index, value, problem):
    """An id that is nobody's, a slot out of range, a token in two places."""
    batch = kit.batch([9, 8, 9], [2, 0, 2], 6, LIMITS)
    rows = flatten_rows(batch, LIMITS)
    check_rows(rows, batch)
    getattr(rows, field).view(-1)[index] = value
    with pytest.raises(LayoutError, match=problem):
        check_rows(rows, batch)
