"""Limits that no device holds: a typed error that names the buffer and its bytes."""

from dataclasses import replace

import pytest
import torch

from adaverify_contracts import Limits, LimitsError, NoStrategyError, hookimpl
from adaverify_runtime import assemble
from adaverify_runtime.allocation import allocating, require_memory, table_bytes


def test_a_billion_requests_are_refused_by_name_and_bytes(real_plugins):
    """``Limits(max_requests=10**9)`` ended in an allocator error deep inside."""
    limits = Limits(max_requests=10**9, draft_tokens=0, max_model_len=2**20, page_size=16)
    assert table_bytes(limits) == 4 * 10**9 * 2**16
    with pytest.raises(LimitsError, match="static block table") as caught:
        assemble(limits, device="cpu", plugins=real_plugins())
    assert str(table_bytes(limits)) in caught.value.arrived
    assert "max_requests" in caught.value.remedy


def test_the_allocators_failure_names_the_buffer_where_the_memory_is_not_known(real_plugins, make):
    """A capability without a memory size: the allocator itself says no."""
    limits = Limits(max_requests=2**30, draft_tokens=0, max_model_len=2**30, page_size=1)
    with pytest.raises(LimitsError, match="static block table") as caught:
        assemble(limits, device="cpu", plugins=real_plugins(), capability=make.capability())
    assert "alloc" in caught.value.arrived


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 7 GiB"),
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes"),
    ],
)
def test_a_strategy_that_finds_no_memory_is_named_and_not_replaced(real_plugins, make, error):
    """Every allocator's way to say so; the strategy did not refuse the limits, the device did."""

    def allocate(limits, device, capability):
        raise error

    class Greedy:
        @hookimpl
        def adaverify_register_decode_strategies(self):
            return (make.strategy("greedy", priority=50, allocate=allocate),)

    limits = Limits(max_requests=2, draft_tokens=3, max_model_len=32, page_size=4)
    with pytest.raises(LimitsError, match="row buffers of strategy greedy"):
        assemble(limits, device="cpu", plugins=real_plugins(Greedy()), drafter=None)


def test_other_errors_of_an_allocation_are_left_alone():
    """A strategy's own failure and refusal keep their type."""
    with pytest.raises(RuntimeError, match="kernel"), allocating("rows"):
        raise RuntimeError("the kernel does not build")
    with pytest.raises(NoStrategyError), allocating("rows"):
        raise NoStrategyError("no", {})


@pytest.mark.parametrize(("less", "fits"), [(0, True), (1, False)])
def test_the_table_may_fill_the_device_and_no_more(make, less, fits):
    """The exact end and one byte less; an assumed device's memory is nobody's."""
    limits = Limits(max_requests=2, draft_tokens=3, max_model_len=32, page_size=4)
    real = replace(make.capability(), assumed=False, memory_bytes=table_bytes(limits) - less)
    require_memory(limits, replace(real, assumed=True))
    require_memory(limits, replace(real, memory_bytes=0))
    if fits:
        require_memory(limits, real)
        return
    with pytest.raises(LimitsError):
        require_memory(limits, real)
