"""Any batch, any padding: the reference equals plain Python, the kernels equal the reference bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import Limits
from adaverify_metadata import LaunchConfig

STRATEGIES = ("uniform", "flatten", "paired", "varlen")
CONFIGS = (LaunchConfig(), LaunchConfig(rows_per_program=4, table_columns=4, num_warps=1))


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_reference_equals_plain_python(kit, strategy, data):
    """Totals, contiguous prefixes, inert padding, clamps, compression, localisation and tables."""
    limits = kit.draw_limits(data.draw, st)
    batch = kit.draw_batch(data.draw, st, limits, uniform=strategy == "uniform")
    builder = kit.builders[strategy](strategy, limits, kit.device, backend="torch")
    rows = builder.build(batch)
    kit.check(rows, strategy, batch, limits)
    real = rows.row_token[rows.row_token >= 0]
    assert real.tolist() == list(range(int(batch.query_start_loc[-1])))
    padding = rows.row_request[rows.row_request >= batch.requests]
    assert len(padding.unique()) == len(padding)
    if rows.tokens_per_row > 1 and rows.rows:
        assert bool((rows.row_lens.diff(dim=1) >= 0).all())


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_kernel_equals_reference_over_poisoned_buffers(kit, strategy, data):
    """Everything a consumer reads is rewritten every step; other table columns are left alone."""
    limits = kit.draw_limits(data.draw, st)
    batch = kit.draw_batch(data.draw, st, limits, uniform=strategy == "uniform")
    made = kit.builders[strategy]
    reference = made(strategy, limits, kit.device, backend="torch")
    kernel = made(strategy, limits, kit.device, backend="triton", launch=data.draw(st.sampled_from(CONFIGS)))
    kit.poison(reference)
    kit.poison(kernel)
    want, got = reference.build(batch), kernel.build(batch)
    kit.same(want, got)
    kit.check(got, strategy, batch, limits)


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_a_second_step_of_the_same_shape_overwrites_the_first(kit, strategy, data):
    """What a replayed graph does: same shape, same addresses, other device lengths."""
    limits = kit.draw_limits(data.draw, st)
    uniform = strategy == "uniform"
    first = kit.draw_batch(data.draw, st, limits, uniform=uniform)
    second = kit.draw_batch(
        data.draw, st, limits, uniform=uniform, requests=first.requests, padded_tokens=first.padded_tokens
    )
    made = kit.builders[strategy]
    reference, kernel = (made(strategy, limits, kit.device, backend=b) for b in ("torch", "triton"))
    addresses = {name: tensor.data_ptr() for name, tensor in kernel.buffers.items()}
    for batch in (first, second):
        kit.same(reference.build(batch), kernel.build(batch))
    assert {name: tensor.data_ptr() for name, tensor in kernel.buffers.items()} == addresses


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("strategy", ["flatten", "paired", "varlen"])
def test_host_placeholders_are_never_read_as_a_row_map(kit, strategy, backend):
    """Device lengths [1, 2], host placeholder [2, 1], 5 padded rows (vllm #52783, #56188)."""
    limits = Limits(max_requests=2, draft_tokens=2, max_model_len=16, page_size=4)
    builder = kit.builders[strategy](strategy, limits, kit.device, backend=backend)
    batch = kit.batch([5, 9], [1, 2], 5, limits, host=[2, 1])
    rows = builder.build(batch)
    kit.check(rows, strategy, batch, limits)
    if strategy != "paired":
        assert rows.row_request.tolist() == [0, 1, 1, 5, 6]


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_rows_are_sliced_by_the_device_when_the_host_split_differs(kit, backend):
    """B = 4, host split [2, 2], device [4, 0]: 5 rows and 1 row (vllm #52242, #51873)."""
    limits = Limits(max_requests=2, draft_tokens=4, max_model_len=20, page_size=4)
    builder = kit.builders["flatten"]("flatten", limits, kit.device, backend=backend)
    rows = builder.build(kit.batch([12, 7], [5, 1], 6, limits, host=[3, 3]))
    assert rows.row_request.tolist() == [0] * 5 + [1]
    assert rows.row_lens.flatten().tolist() == [8, 9, 10, 11, 12, 7]


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_padding_of_a_smaller_batch_is_not_the_last_batch(kit, strategy, backend):
    """5 requests padded to 8 after a batch of 8 (vllm #47066); 3 on a graph of 4 (vllm #39773)."""
    limits = Limits(max_requests=8, draft_tokens=1, max_model_len=30, page_size=8)
    builder = kit.builders[strategy](strategy, limits, kit.device, backend=backend)
    builder.build(kit.batch([20] * 8, [2] * 8, 16, limits, uniform=2))
    for real in (5, 3, 1):
        padding = 8 - real
        batch = kit.batch([20] * real + [0] * padding, [2] * real + [0] * padding, 16, limits, uniform=2)
        rows = builder.build(batch)
        kit.check(rows, strategy, batch, limits)
        empty = rows.row_token[:, -1] < 0
        assert int(empty.sum()) == rows.rows - (2 * real) // rows.tokens_per_row
        assert int(rows.row_lens[empty].abs().sum()) == 0
        # Inert: no length, a valid page, an id that is nobody's.
        assert bool((rows.block_table >= 0).all())
        assert bool((rows.row_request[empty] >= 8).all())


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_phantom_request_in_padded_rows(kit, strategy, backend):
    """7 rows padded to 12 (vllm-ascend #14510): the rest belongs to no request, each to another none."""
    limits = Limits(max_requests=6, draft_tokens=6, max_model_len=30, page_size=8)
    builder = kit.builders[strategy](strategy, limits, kit.device, backend=backend)
    rows = builder.build(kit.batch([20, 0], [7, 0], 12, limits, uniform=7))
    owners = rows.row_request.tolist()
    real = (-(-7 // rows.tokens_per_row)) if strategy != "uniform" else 1
    assert owners == [0] * real + [2 + m for m in range(real, rows.rows)]


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_length_is_never_negative(kit, strategy, backend):
    """Seq_len 0 with query tokens gives 0, not -1 read as 4294967295 (vllm sparse indexer)."""
    limits = Limits(max_requests=2, draft_tokens=3, max_model_len=20, page_size=4)
    builder = kit.builders[strategy](strategy, limits, kit.device, backend=backend)
    rows = builder.build(kit.batch([0, 2], [4, 4], 8, limits, uniform=4))
    padding = 2 if strategy == "paired" else 0
    assert rows.row_lens.flatten().tolist() == [0, 0, 0, 0, 0, 0, 1, 2] + [0] * padding
    assert rows.schedule_lens.flatten().tolist() == [1, 1, 1, 1, 1, 1, 1, 2] + [1] * padding


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("rows", [8, 32, 33, 64])
def test_compressed_lengths_of_zero_keep_a_schedule_of_ones(kit, rows, backend):
    """Seq_len 1, ratio 4: lengths 0, schedule from 1 (vllm #51970, DeepGEMM #353, TensorRT-LLM #14940)."""
    limits = Limits(max_requests=64, draft_tokens=0, max_model_len=64, page_size=4, compress_ratio=4)
    config = LaunchConfig(rows_per_program=16)
    options = {"launch": config} if backend == "triton" else {}
    builder = kit.builders["flatten"]("flatten", limits, kit.device, backend=backend, **options)
    built = builder.build(kit.batch([1] * rows, [1] * rows, rows, limits))
    assert built.row_lens.flatten().tolist() == [0] * rows
    assert built.schedule_lens.flatten().tolist() == [1] * rows


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_requests_at_all(kit, strategy, backend):
    """R = 0 is ordinary: every padded token is padding, an odd count included."""
    limits = Limits(max_requests=2, draft_tokens=2, max_model_len=9, page_size=4)
    builder = kit.builders[strategy](strategy, limits, kit.device, backend=backend)
    for tokens in (0, 1, 2, 5):
        kit.poison(builder)
        batch = kit.batch([], [], tokens, limits, uniform=1)
        kit.check(builder.build(batch), strategy, batch, limits)


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_one_request(kit, strategy, backend, length):
    """R = 1 at every length up to K + 1, alone and padded."""
    limits = Limits(max_requests=1, draft_tokens=2, max_model_len=9, page_size=4)
    builder = kit.builders[strategy](strategy, limits, kit.device, backend=backend)
    for tokens in range(length, 4):
        batch = kit.batch([11], [length], tokens, limits, uniform=length)
        kit.check(builder.build(batch), strategy, batch, limits)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_a_row_copies_only_the_pages_it_needs(kit, backend):
    """Columns past ceil(len / page) keep what they had; an unmapped page (-1) becomes page 0."""
    limits = Limits(max_requests=1, draft_tokens=2, max_model_len=30, page_size=4)
    builder = kit.builders["flatten"]("flatten", limits, kit.device, backend=backend)
    builder.buffers["block_table"].fill_(kit.poison_value)
    table = torch.tensor([[7, -1, 9, 10, 11, 12, 13, 14]])
    rows = builder.build(kit.batch([9], [3], 3, limits, table=table))
    rest = kit.poison_value
    assert rows.row_lens.flatten().tolist() == [7, 8, 9]
    assert rows.block_table.tolist() == [
        [7, 0, *[rest] * 6],
        [7, 0, *[rest] * 6],
        [7, 0, 9, *[rest] * 5],
    ]


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_joined_rows_carry_the_pages_of_their_last_row(kit, backend):
    """A varlen kernel reads the first row's table with the last row's length; flattened rows need less."""
    limits = Limits(max_requests=2, draft_tokens=2, max_model_len=30, page_size=4)
    builder = kit.builders["varlen"]("varlen", limits, kit.device, backend=backend)
    rows = builder.build(kit.batch([9], [3], 4, limits))
    assert rows.block_table[:, :3].tolist() == [[1, 2, 3]] * 3 + [[0, 0, 0]]
    assert rows.request_indices.tolist() == [0, 0, 0, 4]


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_page_offsets_are_64_bit(kit, backend, tmp_path):
    """A table whose rows lie 2^30 entries apart: row 2 starts past 2^31 (DeepGEMM #425)."""
    if kit.device != "cpu":
        pytest.skip("needs a sparse file under the table, which only CPU tensors can have")
    limits = Limits(max_requests=3, draft_tokens=0, max_model_len=8, page_size=2)
    stride, size = 2**30, 2 * 2**30 + 4
    file = tmp_path / "table"
    with file.open("wb") as stream:
        stream.truncate(4 * size)
    storage = torch.from_file(str(file), shared=True, size=size, dtype=torch.int32)
    table = torch.as_strided(storage, (3, 4), (stride, 1))
    table.copy_(torch.arange(12).view(3, 4) + 100)
    batch = kit.batch([8, 8, 8], [1, 1, 1], 3, limits, table=torch.zeros(3, 4))
    batch = type(batch)(batch.query_start_loc, batch.seq_lens, table, 3, 3, 3, 1)
    builder = kit.builders["flatten"]("flatten", limits, kit.device, backend=backend)
    assert builder.build(batch).block_table.tolist() == table.tolist()
    del table, storage, batch
    file.unlink()


def test_the_table_covers_the_drafts(kit):
    """4096 tokens plus K at page 256: 17 columns, not 16 (nano-vllm #190); 120001 at 64 (vllm #48404)."""
    limits = Limits(max_requests=1, draft_tokens=1, max_model_len=4096, page_size=256)
    builder = kit.builders["flatten"]("flatten", limits, kit.device, backend="torch")
    rows = builder.build(kit.batch([4097], [1], 1, limits))
    assert rows.block_table.tolist() == [list(range(1, 18))]
    wide = Limits(max_requests=1, draft_tokens=0, max_model_len=120001, page_size=64)
    assert wide.table_width == 1876
