"""Run probes once per process and turn whatever happens into reports."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from adaverify_capability.assumption import assume
from adaverify_capability.facts import FactsProvider, device_facts
from adaverify_capability.isolation import run_isolated
from adaverify_contracts import (
    Capability,
    CapabilityError,
    DescriptorError,
    KernelLevel,
    KernelReport,
    ProbeDescriptor,
)
from adaverify_contracts.describing import kind_of, text_of

if TYPE_CHECKING:
    import torch

_REASON_CHARACTERS = 400

_lock = threading.Lock()
# The probes are kept beside the result, so that an id in the key cannot be reused by another probe.
_cache: dict[tuple[object, ...], tuple[tuple[ProbeDescriptor, ...], Capability]] = {}


def probe(
    device: str | torch.device,
    probes: Sequence[ProbeDescriptor],
    *,
    override: str | None = None,
    facts: FactsProvider = device_facts,
    refresh: bool = False,
    isolated: bool = False,
) -> Capability:
    """Return what a device can do, executing each probe at most once per process.

    Args:
        device: a torch device or its string. Probes run with that device as the current one.
        probes: what to ask; names must be unique.
        override: an architecture word that replaces the device's own. Probes still run when the device at
            hand is of the same type; otherwise nothing runs and every report says so. The result is marked
            ``assumed``.
        facts: where the device facts come from; tests inject their own.
        refresh: True probes again and replaces the cached result.
        isolated: True runs the probes in a child process, so that one that kills its process is reported as
            absent with the signal as the reason. Takes about 3 s more, the import of torch.

    Raises:
        CapabilityError: the device cannot be read and no override was given.
        UnknownNameError: the override is not a word of the architecture table.
        DescriptorError: two probes carry one name.

    A probe never makes this function raise: its error becomes the reason of an ``ABSENT`` report.
    """
    asked = tuple(probes)
    _require_unique(asked)
    name = str(device)
    key = (name, override, facts, isolated, tuple((item.name, id(item.probe)) for item in asked))
    with _lock:
        if not refresh and key in _cache:
            return _cache[key][1]
        found, runnable = _read(name, override, facts)
        if runnable and isolated:
            from adaverify_capability.probe_process import run_probes_isolated

            reports = run_probes_isolated(asked, found, name)
        elif runnable:
            with current_device(name, found):
                reports = tuple(run_probe(item, found) for item in asked)
        else:
            reports = tuple(_not_run(item, found) for item in asked)
        result = replace(found, kernels=reports)
        _cache[key] = (asked, result)
        return result


def run_probe(descriptor: ProbeDescriptor, facts: Capability) -> KernelReport:
    """Run one probe on the current device; an error, a wrong name or type becomes an ``ABSENT`` report.

    The cheap conditions come first: device type, architecture, then the imports in a child process.
    """
    without = excluded(descriptor, facts)
    if without is not None:
        return without
    for module in descriptor.isolated_imports:
        alone = run_isolated(module)
        if not alone.ok:
            return _absent(descriptor, f"not executed, for in a child process: {alone.reason}")
    try:
        report: object = descriptor.probe(facts)
        _settle(facts)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a kernel library raises is the answer
        return _absent(descriptor, reason_of(error))
    if not isinstance(report, KernelReport):
        return _absent(descriptor, f"the probe returned {type(report).__name__} and not a KernelReport")
    if report.name != descriptor.name:
        return _absent(descriptor, f"the probe reported {report.name!r} under another name")
    return report


def excluded(descriptor: ProbeDescriptor, facts: Capability) -> KernelReport | None:
    """Return an ``ABSENT`` report where the probe is not meant for this device, else None."""
    if descriptor.device_types and facts.device_type not in descriptor.device_types:
        types = " or ".join(descriptor.device_types)
        return _absent(descriptor, f"runs on {types} only, this device is {facts.device_type}")
    if descriptor.architectures and facts.architecture not in descriptor.architectures:
        words = " or ".join(descriptor.architectures)
        return _absent(descriptor, f"runs on {words} only, this device is {facts.architecture}")
    return None


def reason_of(error: BaseException) -> str:
    """Return type and text of an error on one line; an error without text says so (DeepGEMM raises one)."""
    text = " ".join(text_of(error).split()) or "no message"
    line = f"{kind_of(error)}: {text}"
    return line if len(line) <= _REASON_CHARACTERS else f"{line[: _REASON_CHARACTERS - 4]} ..."


def _read(device: str, override: str | None, facts: FactsProvider) -> tuple[Capability, bool]:
    if override is None:
        return replace(facts(device), kernels=()), True
    assumed = assume(override)
    try:
        real = facts(device)
    except CapabilityError:
        return assumed, False
    if real.device_type != assumed.device_type:
        return assumed, False
    merged = replace(
        real,
        architecture=assumed.architecture,
        compute_capability=assumed.compute_capability,
        kernels=(),
        assumed=True,
    )
    return merged, True


def _require_unique(probes: tuple[ProbeDescriptor, ...]) -> None:
    names = [item.name for item in probes]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DescriptorError(
            f"two probes report the kernel {repeated[0]!r}",
            arrived=tuple(names),
            allowed="one probe for each kernel name",
            remedy="disable one of the plugins that register it",
        )


def current_device(device: str, facts: Capability) -> AbstractContextManager[object]:
    """Return a context in which a numbered accelerator is torch's current device."""
    if facts.device_type == "cpu" or ":" not in device:
        return nullcontext()
    import torch

    # Facts injected on a machine without the device leave nothing to make current.
    return torch.cuda.device(device) if torch.cuda.is_available() else nullcontext()


def _settle(facts: Capability) -> None:
    """Wait for the probe's own work, so that a late device error is charged to this probe."""
    if facts.device_type == "cpu":
        return
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _absent(descriptor: ProbeDescriptor, reason: str) -> KernelReport:
    return KernelReport(descriptor.name, "", KernelLevel.ABSENT, reason)


def _not_run(descriptor: ProbeDescriptor, facts: Capability) -> KernelReport:
    return _absent(
        descriptor,
        f"not executed: {facts.architecture} is assumed and no {facts.device_type} device is at hand",
    )
