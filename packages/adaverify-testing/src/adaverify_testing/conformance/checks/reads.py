"""Host reads of ``build``: watched where torch shows them, and by their effect where nothing shows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch

from adaverify_contracts import DecodeRowBuilder, GraphSupport, Limits
from adaverify_testing.conformance import watching
from adaverify_testing.conformance.blame import strategy_place
from adaverify_testing.conformance.checks import graphs
from adaverify_testing.conformance.checks.memory import complaint, warm
from adaverify_testing.conformance.oracle import differences
from adaverify_testing.conformance.report import CheckFailed
from adaverify_testing.conformance.subject import Subject, poison_rows, require_plain
from adaverify_testing.waiting import refusing_waits

_CONTRACT = "DecodeRowBuilder.build never reads a device value and never synchronises"


def no_host_read(subject: Subject) -> str:
    """A build reads no device value on the host and waits for nothing."""
    refusing: Callable[[Callable[[], Any]], Any] = (
        _refusing_syncs if subject.device.type == "cuda" else watching.refusing_host_reads
    )
    for name, limits, builder in subject.builders():
        warm(subject, builder, limits)
        for case in subject.cases(limits, count=3, seed=4):
            batch = case.batch(limits, subject.device)
            subject.build(builder, batch, case.describe())
            try:
                refusing(lambda: builder.build(batch))  # noqa: B023 - called at once
            except Exception as error:
                read = isinstance(error, watching.HostRead) or "synchroniz" in str(error)
                if not read:
                    raise
                place = strategy_place(error)
                problem = f"build reads a device value on the host: {f'{place}: ' if place else ''}{error}"
                raise CheckFailed(complaint(problem, case, name, _CONTRACT)) from error
        if subject.device.type == "cpu" and subject.descriptor.graph_support is GraphSupport.NEVER:
            _refuse_baked_values(subject, builder, name, limits)
    if subject.device.type == "cuda":
        return "torch raises on every synchronisation"
    return "torch operations and tensor methods watched; kernels outside torch are not"


def _refusing_syncs(run: Callable[[], Any]) -> Any:
    torch.cuda.synchronize()
    with refusing_waits():
        return run()


def _refuse_baked_values(subject: Subject, builder: DecodeRowBuilder, name: str, limits: Limits) -> None:
    """Repeat the torch operations of a build on other lengths: a value read unseen stays what it was.

    Strategies that declare graph support are held to this by the checks of it.
    """
    captured = graphs.captured_case(limits, subject)
    require_plain(subject, captured, name, limits)
    batch = captured.batch(limits, subject.device)
    recorded = graphs.record(subject, builder, batch, captured, limits)
    if recorded is None:
        return
    rows, replay = recorded
    lengths = graphs.fewer_requests if subject.uniform else graphs.any_lengths
    for case in chain(graphs.other_kv(limits, captured), lengths(limits, captured)):
        case.write_to(batch, limits)
        poison_rows(rows)
        replay()
        found = differences(rows, case, limits)
        if found:
            problem = (
                "build reads a device value on the host, unseen by torch: its torch operations, repeated "
                f"with other lengths, give rows of the old ones\n{found[0].text()}\n"
                f"  built with query lengths {list(captured.query)} and KV lengths {list(captured.kv)}\n"
                "  to do: read lengths in torch operations or kernels only; a kernel outside torch writes to "
                "the static buffers itself, or is registered with torch.library"
            )
            raise CheckFailed(complaint(problem, case, name, _CONTRACT))
