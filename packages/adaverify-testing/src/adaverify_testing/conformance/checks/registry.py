"""Every check by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from adaverify_testing.conformance.blame import strategy_place, told
from adaverify_testing.conformance.checks import contract, graphs, memory, reads, semantics, timing
from adaverify_testing.conformance.report import (
    FAILED,
    PASSED,
    READ,
    SKIPPED,
    CheckFailed,
    CheckOutcome,
    CheckSkipped,
)
from adaverify_testing.conformance.subject import Subject

# Returns a remark for the report, or measurements.
Check: TypeAlias = Callable[[Subject], str | Mapping[str, float] | None]

CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        "requirements": contract.requirements,
        "allocation": contract.allocation,
        "dtypes": contract.dtypes,
        "row_semantics": semantics.row_semantics,
        "padding": semantics.padding,
        "stale_tail": semantics.stale_tail,
        "stale_host_lengths": semantics.stale_host_lengths,
        "determinism": semantics.determinism,
        "request_order": semantics.request_order,
        "inputs_unchanged": contract.inputs_unchanged,
        "refusals": contract.refusals,
        "address_stability": memory.address_stability,
        "no_allocation": memory.no_allocation,
        "no_host_read": reads.no_host_read,
        "capture_and_replay": graphs.capture_and_replay,
        "graph_support": graphs.graph_support,
        "latency": timing.latency,
    }
)


def run_check(name: str, subject: Subject) -> CheckOutcome:
    """Run one check and return what became of it; an error of the strategy never escapes."""
    subject.running = name
    try:
        found = CHECKS[name](subject)
    except CheckSkipped as skipped:
        return CheckOutcome(name, SKIPPED, str(skipped))
    except CheckFailed as failed:
        return CheckOutcome(name, FAILED, str(failed))
    except Exception as error:  # noqa: BLE001 - a stranger's code may raise anything; it is kept and reported
        if strategy_place(error) is None:
            words = (
                "the kit raised while it judged what the strategy made; no line of the strategy was running"
            )
            return CheckOutcome(name, FAILED, f"{words}: {told(error)}\n{READ}")
        return CheckOutcome(name, FAILED, f"the strategy raised {told(error)}")
    if isinstance(found, Mapping):
        return CheckOutcome(name, PASSED, numbers=dict(found))
    return CheckOutcome(name, PASSED, found or "")
