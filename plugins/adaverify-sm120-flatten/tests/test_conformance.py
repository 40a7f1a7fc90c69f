"""The conformance kit over the strategy's layout on an assumed chip; its kernel is compiled elsewhere."""

from __future__ import annotations

from dataclasses import replace

from adaverify_contracts import Limits
from adaverify_metadata import FlattenRowBuilder
from adaverify_sm120_flatten import hooks
from adaverify_testing import fake_capability, run_conformance


def test_the_layout_conforms_in_torch():
    """With the torch backend, since no such chip was ever at hand."""

    def allocate(limits, device, capability):
        return FlattenRowBuilder("flatten-sm120", limits, device, backend="torch")

    (strategy,) = hooks.adaverify_register_decode_strategies()
    sizes = {
        "plain": Limits(max_requests=4, draft_tokens=3, max_model_len=300, page_size=64),
        "compressed": Limits(
            max_requests=3, draft_tokens=2, max_model_len=300, page_size=16, compress_ratio=4
        ),
    }
    report = run_conformance(
        replace(strategy, allocate=allocate),
        limits=sizes,
        capability=fake_capability("sm120", kernels=["triton"]),
    )
    assert {item.status for item in report.outcomes} == {"passed"}, report.text()
