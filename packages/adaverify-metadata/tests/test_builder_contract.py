"""What a builder promises besides values: protocol, addresses, refusals, schedules, no device reads."""

from __future__ import annotations

import pytest
import torch

from adaverify_contracts import DecodeRowBuilder, DescriptorError, LayoutError, Limits, LimitsError
from adaverify_metadata import HeadHeavySchedule, LaunchConfig, TailHeavySchedule, schedule_tail_heavy

STRATEGIES = ("uniform", "flatten", "paired", "varlen")
LIMITS = Limits(max_requests=3, draft_tokens=1, max_model_len=15, page_size=4)


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_builder_meets_the_contract(kit, strategy, backend):
    """It is a DecodeRowBuilder, carries its name, and returns views of its own buffers."""
    builder = kit.builders[strategy]("some-name", LIMITS, kit.device, backend=backend)
    assert isinstance(builder, DecodeRowBuilder)
    rows = builder.build(kit.batch([9, 9], [2, 2], 4, LIMITS, uniform=2))
    assert rows.strategy == builder.strategy == "some-name"
    for name, tensor in builder.buffers.items():
        view = getattr(rows, name)
        assert view.data_ptr() == tensor.data_ptr()
    assert rows is builder.build(kit.batch([5, 5], [2, 2], 4, LIMITS, uniform=2))
    with pytest.raises(TypeError):
        builder.buffers["row_lens"] = None


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("columns", [3, 5])
def test_another_table_width_is_refused_with_both_numbers(kit, strategy, columns):
    """The width is fixed for the life of the buffers (vllm #48404)."""
    builder = kit.builders[strategy](strategy, LIMITS, kit.device, backend="torch")
    batch = kit.batch([9], [2], 2, LIMITS, uniform=2, table=torch.zeros(1, columns))
    with pytest.raises(LayoutError, match="exactly 4 block_table columns") as caught:
        builder.build(batch)
    assert caught.value.arrived["block_table columns"] == columns


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_more_requests_than_the_limits_are_refused(kit, strategy):
    """At most 3 requests, graph of 4 (vllm-ascend #16168)."""
    builder = kit.builders[strategy](strategy, LIMITS, kit.device, backend="torch")
    with pytest.raises(LayoutError, match="at most 3 requests"):
        builder.build(kit.batch([9] * 4, [1] * 4, 4, LIMITS, uniform=1))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_more_tokens_than_the_limits_are_refused(kit, strategy):
    """One token past max_requests x (K + 1)."""
    builder = kit.builders[strategy](strategy, LIMITS, kit.device, backend="torch")
    with pytest.raises(LayoutError, match="6 tokens"):
        builder.build(kit.batch([9] * 3, [2] * 3, 7, LIMITS, uniform=2))


def test_max_rows_widens_or_narrows_the_buffers(kit):
    """Tiers that round past the largest decode step need more rows than the limits alone."""
    batch = kit.batch([9] * 3, [2] * 3, 8, LIMITS)
    wide = kit.builders["flatten"]("flatten", LIMITS, kit.device, backend="torch", max_rows=8)
    assert wide.build(batch).rows == 8
    narrow = kit.builders["flatten"]("flatten", LIMITS, kit.device, backend="torch", max_rows=4)
    with pytest.raises(LayoutError, match="4 rows"):
        narrow.build(kit.batch([9] * 3, [2] * 3, 6, LIMITS))
    with pytest.raises(LimitsError, match="max_rows"):
        kit.builders["flatten"]("flatten", LIMITS, kit.device, backend="torch", max_rows=0)


def test_a_batch_on_another_device_is_refused(kit):
    """Nothing is copied between devices behind the caller's back."""
    builder = kit.builders["flatten"]("flatten", LIMITS, "meta", backend="torch")
    with pytest.raises(LayoutError, match="on meta"):
        builder.build(kit.batch([9], [2], 2, LIMITS))


def test_an_unknown_backend_is_refused(kit):
    """The message lists the two there are."""
    with pytest.raises(LimitsError, match="torch, triton"):
        kit.builders["flatten"]("flatten", LIMITS, kit.device, backend="cuda")


def test_table_rows_start_16_bytes_apart(kit):
    """A width of 5 is padded with page 0, so that a read one past a row's pages is valid (section 9 j)."""
    limits = Limits(max_requests=2, draft_tokens=0, max_model_len=20, page_size=4)
    builder = kit.builders["flatten"]("flatten", limits, kit.device, backend="torch")
    table = builder.buffers["block_table"]
    assert table.shape == (2, 5)
    assert table.stride() == (8, 1)
    past = torch.as_strided(table, (2, 8), (8, 1))[:, 5:]
    assert past.tolist() == [[0, 0, 0]] * 2


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_the_schedule_is_rebuilt_with_the_rows(kit, backend):
    """One build gives rows and the schedule of their clamped lengths, padding rows left out."""
    schedule = TailHeavySchedule(LIMITS, kit.device, 4, backend=backend, split=4)
    builder = kit.builders["paired"]("paired", LIMITS, kit.device, backend=backend, schedule=schedule)
    for seq_lens in ([16, 9], [3, 0]):
        rows = builder.build(kit.batch(seq_lens, [2, 1], 4, LIMITS))
        assert rows.schedule.data_ptr() == builder.buffers["schedule"].data_ptr()
        want = schedule_tail_heavy(rows.schedule_lens, 4, split=4, row_lens=rows.row_lens)
        assert torch.equal(rows.schedule, want)
        assert rows.schedule[-1, 0] < rows.rows


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_a_grouping_schedule_gets_the_request_indices(kit, backend):
    """Varlen rows hand their ids to the head-heavy rule: 2 runs and 1 padding row over 2 slots."""
    schedule = HeadHeavySchedule(LIMITS, kit.device, 2, backend=backend, split=4)
    builder = kit.builders["varlen"]("varlen", LIMITS, kit.device, backend=backend, schedule=schedule)
    rows = builder.build(kit.batch([8, 4], [2, 1], 4, LIMITS))
    # Splits 2, 1, 1; work 4, 1, 1; starts 0, 3, 6.
    assert rows.schedule.tolist() == [[0, 0], [0, 1], [4, 0]]


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_schedules_that_cannot_be_right_are_refused(kit, backend):
    """No slot, more rows than limits, int32 prefix sums that overflow, rows past one program."""
    with pytest.raises(LimitsError, match="at least one slot"):
        TailHeavySchedule(LIMITS, kit.device, 0, backend=backend)
    lens = torch.ones(7, 1, dtype=torch.int32, device=kit.device)
    schedule = TailHeavySchedule(LIMITS, kit.device, 2, backend=backend)
    with pytest.raises(LayoutError, match="M <= 6"):
        schedule.build(lens)
    huge = Limits(max_requests=4096, draft_tokens=7, max_model_len=2**30, page_size=64)
    with pytest.raises(LimitsError, match="int32"):
        TailHeavySchedule(huge, kit.device, 2, backend=backend)
    many = Limits(max_requests=4096, draft_tokens=7, max_model_len=4096, page_size=64)
    if backend == "triton":
        with pytest.raises(LimitsError, match="16384"):
            TailHeavySchedule(many, kit.device, 2, backend=backend)
    else:
        TailHeavySchedule(many, kit.device, 2, backend=backend)


@pytest.mark.parametrize(
    "values", [{"rows_per_program": 3}, {"table_columns": 2}, {"num_warps": 0}, {"num_warps": 4.0}]
)
def test_launch_parameters_are_powers_of_two(values):
    """Triton's blocks are; a wrong one is named."""
    with pytest.raises(DescriptorError, match=next(iter(values))):
        LaunchConfig(**values)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_build_reads_no_device_value_and_launches_once(kit, strategy, monkeypatch):
    """Reading a tensor on the host is what would synchronise; the kernel is launched exactly once."""
    builder = kit.builders[strategy](strategy, LIMITS, kit.device, backend="triton")
    batch = kit.batch([9, 9], [2, 2], 4, LIMITS, uniform=2)
    launches = []

    def count(batch, width):
        launches.append(width)

    def refuse(*args, **kwargs):
        raise AssertionError("a device value was read, or device memory was allocated")

    monkeypatch.setattr(builder, "_launch", count)
    for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__index__", "to"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    for name in ("empty", "zeros", "arange", "tensor", "cat"):
        monkeypatch.setattr(torch, name, refuse)
    builder.build(batch)
    assert len(launches) == 1
