"""Batches and rows check their layout when they are built, without reading a device value."""

import pytest
import torch

from adaverify_contracts import DecodeBatch, DecodeRows, LayoutError


def _ints(*shape):
    return torch.zeros(*shape, dtype=torch.int32)


def _batch(**changed):
    """Three real requests of a padded four: lengths 3, 1, 4."""
    fields = {
        "query_start_loc": torch.tensor([0, 3, 4, 8, 8], dtype=torch.int32),
        "seq_lens": torch.tensor([10, 7, 12, 0], dtype=torch.int32),
        "block_table": _ints(4, 2),
        "num_requests": 3,
        "num_tokens": 8,
        "padded_tokens": 10,
        "max_query_len": 4,
        **changed,
    }
    return DecodeBatch(**fields)


def test_the_batch_of_the_design_is_valid():
    batch = _batch()
    assert batch.requests == 4
    assert batch.uniform_query_len is None


@pytest.mark.parametrize("field", ["query_start_loc", "seq_lens", "block_table"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.float32])
def test_another_dtype_than_int32_is_refused(field, dtype):
    with pytest.raises(LayoutError, match=rf"DecodeBatch\.{field}.*dtype") as caught:
        _batch(**{field: getattr(_batch(), field).to(dtype)})
    assert caught.value.arrived == str(dtype)


@pytest.mark.parametrize(
    "changed",
    [
        {"query_start_loc": _ints(5, 1)},
        {"seq_lens": _ints(4, 1)},
        {"block_table": _ints(4)},
        {"query_start_loc": _ints(4)},
        {"query_start_loc": _ints(6)},
        {"seq_lens": _ints(5)},
        {"block_table": _ints(3, 2)},
        {"block_table": _ints(2, 4).t()},
        {"seq_lens": _ints(8)[::2]},
        {"seq_lens": [10, 7, 12, 0]},
        {"num_requests": 5},
        {"num_requests": -1},
        {"num_tokens": 11},
        {"num_tokens": -1},
        {"padded_tokens": 7},
        {"max_query_len": 2},
        {"max_query_len": -1},
        {"uniform_query_len": 3},
        {"uniform_query_len": 0},
        {"num_requests": 0, "num_tokens": 1},
    ],
)
def test_a_batch_that_contradicts_itself_is_refused_in_words(changed):
    """All per-request arrays of a batch have the same padded length, checked when it is built."""
    with pytest.raises(LayoutError) as caught:
        _batch(**changed)
    assert caught.value.problem.startswith("DecodeBatch")
    assert caught.value.allowed
    assert caught.value.remedy


def test_tensors_on_two_devices_are_refused():
    with pytest.raises(LayoutError, match="another device") as caught:
        _batch(seq_lens=torch.zeros(4, dtype=torch.int32, device="meta"))
    assert (caught.value.arrived, caught.value.allowed) == ("meta", "cpu")


def test_no_value_is_read_so_a_batch_can_be_built_under_capture():
    """Meta tensors have no values: building one from them would fail on any read."""
    place = {"dtype": torch.int32, "device": "meta"}
    batch = DecodeBatch(
        torch.empty(5, **place), torch.empty(4, **place), torch.empty(4, 2, **place), 3, 8, 10, 4
    )
    assert batch.requests == 4


def test_an_empty_batch_a_wide_row_stride_and_one_column_are_ordinary():
    empty = DecodeBatch(_ints(1), _ints(0), _ints(0, 2), 0, 0, 0, 0)
    assert empty.requests == 0
    assert _batch(block_table=_ints(4, 8)[:, :2]).block_table.stride(0) == 8
    assert _batch(block_table=_ints(4, 3)[:, :1]).block_table.shape == (4, 1)


def test_a_uniform_batch_names_its_length():
    batch = _batch(
        query_start_loc=torch.tensor([0, 2, 4, 6, 6], dtype=torch.int32), num_tokens=6, uniform_query_len=2
    )
    assert batch.uniform_query_len == 2


def _rows(**changed):
    fields = {
        "strategy": "paired",
        "tokens_per_row": 2,
        "row_lens": _ints(5, 2),
        "schedule_lens": _ints(5, 2),
        "block_table": _ints(5, 3),
        "row_request": _ints(5),
        "row_token": _ints(5, 2),
        "token_slot": _ints(8),
        **changed,
    }
    return DecodeRows(**fields)


def test_rows_of_one_shape_are_valid():
    rows = _rows()
    assert rows.rows == 5
    assert (rows.request_indices, rows.schedule) == (None, None)
    assert _rows(token_slot=_ints(0)).rows == 5


@pytest.mark.parametrize(
    "changed",
    [
        {"tokens_per_row": 0},
        {"tokens_per_row": 1},
        {"row_lens": _ints(5)},
        {"row_lens": _ints(4, 2)},
        {"schedule_lens": _ints(5, 1)},
        {"schedule_lens": _ints(6, 2)},
        {"row_token": _ints(5, 3)},
        {"row_request": _ints(4)},
        {"row_request": _ints(5, 1)},
        {"block_table": _ints(4, 3)},
        {"block_table": _ints(3, 5).t()},
        {"token_slot": _ints(8, 1)},
        {"row_lens": torch.zeros(5, 2, dtype=torch.int64)},
        {"row_request": torch.zeros(5, dtype=torch.int32, device="meta")},
    ],
)
def test_rows_that_contradict_themselves_are_refused_by_field(changed):
    with pytest.raises(LayoutError, match="DecodeRows") as caught:
        _rows(**changed)
    assert caught.value.remedy
