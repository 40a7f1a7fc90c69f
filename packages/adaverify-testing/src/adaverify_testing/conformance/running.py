"""Run the kit over one strategy from Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from adaverify_contracts import Capability, DecodeStrategyDescriptor, Limits, UnknownNameError
from adaverify_testing.conformance.report import ConformanceReport

if TYPE_CHECKING:
    import torch

    from adaverify_testing.conformance.subject import Subject


def make_subject(
    descriptor: DecodeStrategyDescriptor,
    limits: Limits | Mapping[str, Limits] | None = None,
    device: str | torch.device = "cpu",
    capability: Capability | None = None,
) -> Subject:
    """Return the strategy on a device, by default with the kit's limits and the device's own capability."""
    import torch

    from adaverify_capability import probe
    from adaverify_testing.conformance.subject import DEFAULT_LIMITS, Subject

    sizes = {"given": limits} if isinstance(limits, Limits) else dict(limits or DEFAULT_LIMITS)
    where = torch.device(device)
    return Subject(descriptor, sizes, where, capability or probe(where, ()))


def run_conformance(
    descriptor: DecodeStrategyDescriptor,
    *,
    limits: Limits | Mapping[str, Limits] | None = None,
    device: str | torch.device = "cpu",
    capability: Capability | None = None,
    checks: Iterable[str] | None = None,
) -> ConformanceReport:
    """Run every check over one strategy and return what became of each; faults of the strategy never raise.

    Args:
        descriptor: the strategy as its plugin registers it.
        limits: sizes to allocate for, one or several by name; the kit's own when None.
        device: where batches live.
        capability: what requirements are compared with and the factory is told; the device's own, without
            any kernel, when None. ``fake_capability`` makes one of hardware that is not here.
        checks: names out of ``conformance_checks()``; all when None.

    Raises:
        UnknownNameError: a check of that name does not exist.
        CapabilityError: the device cannot be probed.
    """
    from adaverify_testing.conformance.checks import CHECKS, run_check

    names = tuple(CHECKS) if checks is None else tuple(checks)
    for name in names:
        if name not in CHECKS:
            raise UnknownNameError("check", name, tuple(CHECKS))
    subject = make_subject(descriptor, limits, device, capability)
    outcomes = tuple(run_check(name, subject) for name in names)
    return ConformanceReport(
        descriptor.name,
        str(subject.device),
        subject.capability.architecture,
        subject.capability.assumed,
        outcomes,
    )


def conformance_checks() -> tuple[str, ...]:
    """Return the names of all checks in the order in which they run."""
    from adaverify_testing.conformance.checks import CHECKS

    return tuple(CHECKS)
