"""The conformance kit over the strategies: as registered on an assumed chip, and on the chip itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from adaverify_contracts import KernelLevel, KernelReport, Limits
from adaverify_sm100_varlen import hooks
from adaverify_sm100_varlen.deep_gemm.versions import PINNED
from adaverify_testing import fake_capability, run_conformance

STRATEGIES = {item.name: item for item in hooks.adaverify_register_decode_strategies()}
BUILDS = {"head": "2.6.1", "paired": PINNED, "newer": "2.8.2"}


@pytest.mark.parametrize(
    ("name", "version"),
    [*(("varlen", version) for version in BUILDS.values()), ("uniform-varlen", PINNED)],
)
def test_the_layout_conforms_in_torch(name, version):
    """With the schedule of each contract; torch stands in for the kernels where no card is."""
    report = KernelReport("deep-gemm-varlen", version, KernelLevel.EXECUTED, "set by the test")
    capability = replace(fake_capability("sm100", kernels=["triton", report]), processors=4)
    sizes = {
        "plain": Limits(max_requests=4, draft_tokens=3, max_model_len=300, page_size=64),
        "compressed": Limits(
            max_requests=3, draft_tokens=2, max_model_len=300, page_size=16, compress_ratio=4
        ),
    }
    found = run_conformance(STRATEGIES[name], limits=sizes, capability=capability)
    assert {item.status for item in found.outcomes} == {"passed"}, found.text()


@pytest.mark.sm100
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_strategy_conforms_on_the_device(name, here):
    """As registered: Triton kernels, a CUDA graph, the allocator's counters and torch's refusal to wait."""
    report = run_conformance(STRATEGIES[name], device="cuda", capability=here)
    assert {item.status for item in report.outcomes} == {"passed"}, report.text()
    assert torch.cuda.is_available()
