"""Uniform batches in native rows."""

from dataclasses import fields

import pytest
import torch

from adaverify_contracts import LayoutError, Limits
from adaverify_metadata import TailHeavySchedule, paired_rows, schedule_tail_heavy, uniform_rows
from adaverify_sm90_flatten.uniform import NativeUniformRowBuilder

LIMITS = Limits(max_requests=4, draft_tokens=7, max_model_len=300, page_size=64)


def make(limits=LIMITS):
    schedule = TailHeavySchedule(limits, "cpu", 5, backend="torch")
    return NativeUniformRowBuilder("uniform-native", limits, "cpu", backend="torch", schedule=schedule)


@pytest.mark.parametrize("length", range(1, 9))
def test_rows_are_never_wider_than_the_kernel_takes(kit, length):
    """vllm #43457: three query tokens in one row hit an assertion."""
    builder = make()
    batch = kit.batch([length, length, 0], [5, 200, 0], 2 * length + 1, LIMITS, uniform=length)
    rows = builder.build(batch)
    want = (uniform_rows if length <= 2 else paired_rows)(batch, LIMITS)
    assert rows.tokens_per_row == (length if length <= 2 else 2)
    for field in fields(want):
        value = getattr(want, field.name)
        if isinstance(value, torch.Tensor) and field.name != "block_table":
            assert torch.equal(getattr(rows, field.name), value), field.name
    wanted = schedule_tail_heavy(want.schedule_lens, 5, row_lens=want.row_lens)
    assert torch.equal(rows.schedule, wanted)


def test_addresses_never_change(kit):
    builder = make()
    before = {name: tensor.data_ptr() for name, tensor in builder.buffers.items()}
    for length in (1, 2, 3, 8):
        builder.build(kit.batch([length] * 2, [5, 200], 2 * length, LIMITS, uniform=length))
    assert {name: tensor.data_ptr() for name, tensor in builder.buffers.items()} == before
    assert before["whole_schedule"] == before["pairs_schedule"]


def test_a_ragged_batch_is_refused(kit):
    with pytest.raises(LayoutError, match="cannot build a ragged batch"):
        make().build(kit.batch([3, 1], [5, 9], 4, LIMITS))


def test_short_queries_need_no_pairs():
    """K = 1: half the buffers."""
    builder = make(Limits(max_requests=4, draft_tokens=1, max_model_len=300, page_size=64))
    assert not [name for name in builder.buffers if name.startswith("pairs")]
