"""Drawn batches obey the contract and reach its corners."""

import pytest
import torch
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from adaverify_contracts import Limits, ceil_div
from adaverify_testing.strategies import UNUSED_PAGE, decode_batches, limits

_LIMITS = Limits(max_requests=4, draft_tokens=3, max_model_len=40, page_size=4)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), sizes=limits(compress_ratios=(1, 4), context_parallel_sizes=(1, 2)))
def test_a_batch_fits_its_limits(data, sizes):
    batch = data.draw(decode_batches(sizes))
    lengths = batch.query_start_loc.diff()
    assert batch.query_start_loc[0] == 0
    assert batch.query_start_loc[-1] == batch.num_tokens <= batch.padded_tokens <= sizes.max_tokens
    assert int(lengths.min()) >= 0
    assert int(lengths.max()) <= sizes.max_query_len == batch.max_query_len
    assert (lengths <= batch.seq_lens).all()
    assert int(batch.seq_lens.max()) <= sizes.max_kv_len
    assert (lengths[batch.num_requests :] == 0).all()
    assert (batch.seq_lens[batch.num_requests :] == 0).all()
    assert batch.requests <= sizes.max_requests
    assert batch.block_table.shape[1] == sizes.table_width
    if batch.uniform_query_len is not None:
        assert (lengths[: batch.num_requests] == batch.uniform_query_len).all()


@settings(max_examples=40, deadline=None)
@given(data=st.data(), sizes=limits(compress_ratios=(1, 4)))
def test_pages_in_use_are_valid_and_distinct_and_the_rest_is_no_page(data, sizes):
    batch = data.draw(decode_batches(sizes))
    used = []
    for row, length in enumerate(batch.seq_lens.tolist()):
        count = ceil_div(length // sizes.compress_ratio, sizes.page_size)
        used += batch.block_table[row, :count].tolist()
        assert (batch.block_table[row, count:] == UNUSED_PAGE).all()
    assert len(set(used)) == len(used)
    assert all(0 <= page <= len(used) for page in used)


@settings(max_examples=30, deadline=None)
@given(batch=decode_batches(_LIMITS, uniform=True))
def test_uniform_batches_say_so(batch):
    assert batch.num_requests == 0 or batch.uniform_query_len >= 1


@settings(max_examples=30, deadline=None)
@given(batch=decode_batches(_LIMITS, uniform=False, min_query_len=1))
def test_ragged_batches_have_no_uniform_length_and_respect_the_shortest(batch):
    assert batch.uniform_query_len is None
    assert (batch.query_start_loc.diff()[: batch.num_requests] >= 1).all()


@pytest.mark.parametrize(
    "corner",
    [
        lambda batch: batch.num_requests == 0,
        lambda batch: batch.num_requests == 1,
        lambda batch: batch.num_tokens == batch.padded_tokens == _LIMITS.max_tokens,
        lambda batch: batch.padded_tokens > batch.num_tokens > 0,
        lambda batch: batch.requests > batch.num_requests > 0,
        lambda batch: 0 in batch.query_start_loc.diff()[: batch.num_requests].tolist(),
        lambda batch: len(set(batch.query_start_loc.diff()[: batch.num_requests].tolist())) > 2,
        lambda batch: int(batch.seq_lens.max()) == _LIMITS.max_kv_len,
        lambda batch: batch.uniform_query_len is not None and batch.num_requests > 1,
        lambda batch: batch.block_table.stride(0) > batch.block_table.shape[1],
        lambda batch: bool((batch.seq_lens == batch.query_start_loc.diff()).all()) and batch.num_tokens > 0,
    ],
)
def test_the_corners_are_reached(corner):
    quick = settings(
        max_examples=2000,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    found = find(decode_batches(_LIMITS), corner, settings=quick)
    assert found.query_start_loc.dtype is torch.int32
