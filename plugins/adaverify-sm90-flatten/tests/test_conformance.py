"""The conformance kit over the three strategies: their layouts anywhere, their kernels on the device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from adaverify_contracts import Limits
from adaverify_metadata import FlattenRowBuilder, PairedRowBuilder, TailHeavySchedule
from adaverify_sm90_flatten import hooks
from adaverify_sm90_flatten.uniform import NativeUniformRowBuilder
from adaverify_testing import fake_capability, run_conformance

STRATEGIES = {item.name: item for item in hooks.adaverify_register_decode_strategies()}
BUILDERS = {
    "flatten": FlattenRowBuilder,
    "paired": PairedRowBuilder,
    "uniform-native": NativeUniformRowBuilder,
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_layout_conforms_in_torch(name):
    """The builder of each strategy with its torch backend and the schedule, on an assumed device."""

    def allocate(limits, device, capability):
        schedule = TailHeavySchedule(limits, device, capability.processors, backend="torch")
        return BUILDERS[name](name, limits, device, backend="torch", schedule=schedule)

    capability = replace(fake_capability("sm90", kernels=["triton"]), processors=4)
    sizes = {
        "plain": Limits(max_requests=4, draft_tokens=3, max_model_len=300, page_size=64),
        "compressed": Limits(
            max_requests=3, draft_tokens=2, max_model_len=300, page_size=16, compress_ratio=4
        ),
    }
    report = run_conformance(
        replace(STRATEGIES[name], allocate=allocate), limits=sizes, capability=capability
    )
    assert {item.status for item in report.outcomes} == {"passed"}, report.text()


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_strategy_conforms_on_the_device(name, here):
    """As registered: Triton kernels, a CUDA graph, the allocator's counters and torch's refusal to wait."""
    report = run_conformance(STRATEGIES[name], device="cuda", capability=here)
    assert {item.status for item in report.outcomes} == {"passed"}, report.text()
    assert torch.cuda.is_available()
