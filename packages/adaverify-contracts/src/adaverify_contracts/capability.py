"""What one device can do, as a value: probed once, injectable, hashable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from adaverify_contracts import _check
from adaverify_contracts.enums import KernelLevel
from adaverify_contracts.errors import DescriptorError

DEVICE_TYPES = ("cpu", "cuda", "rocm")


@dataclass(frozen=True, slots=True)
class KernelReport:
    """How far one kernel library or kernel was proven on a device.

    Attributes:
        name: the kernel's name as strategies require it, for instance ``paged-mqa-logits``.
        version: version of the library that provides it, empty when unknown or absent.
        level: ``ABSENT``, ``IMPORTED`` or ``EXECUTED``; only the last compared values with a known answer.
        reason: why the level is what it is, in one sentence a user can act on.
    """

    name: str
    version: str
    level: KernelLevel
    reason: str

    def __post_init__(self) -> None:
        _check.name("KernelReport", self.name)
        _check.instance("KernelReport", "version", self.version, str)
        _check.instance("KernelReport", "level", self.level, KernelLevel)
        if not self.reason:
            raise DescriptorError(
                f"KernelReport {self.name!r} has no reason",
                allowed="one sentence",
                remedy="say why the level is what it is",
            )


@dataclass(frozen=True, slots=True)
class Capability:
    """Everything that strategy selection may dispatch on.

    Attributes:
        device_type: ``cpu``, ``cuda`` or ``rocm``.
        architecture: the exact word of the capability package's table, ``cpu`` for CPUs, ``unknown`` for a
            device the table does not list. Never a family.
        device_name: what the driver calls the device.
        compute_capability: (major, minor) of a CUDA device, else None.
        processors: streaming multiprocessors, compute units or CPU cores; at least 1.
        memory_bytes: total device memory, 0 when unknown.
        versions: (name, version) pairs that identify the software: torch, triton, driver and so on.
        kernels: one report per probed kernel, unique by name.
        assumed: True when injected or overridden and not read from a device.
    """

    device_type: str
    architecture: str
    device_name: str
    compute_capability: tuple[int, int] | None
    processors: int
    memory_bytes: int
    versions: tuple[tuple[str, str], ...] = ()
    kernels: tuple[KernelReport, ...] = ()
    assumed: bool = False

    def __post_init__(self) -> None:
        if self.device_type not in DEVICE_TYPES:
            raise DescriptorError(
                "Capability.device_type is unknown",
                arrived=self.device_type,
                allowed=", ".join(DEVICE_TYPES),
                remedy="report the device under one of the allowed types",
            )
        _check.instance("Capability", "architecture", self.architecture, str)
        _check.at_least("Capability", "processors", self.processors, 1)
        _check.at_least("Capability", "memory_bytes", self.memory_bytes, 0)
        names = [report.name for report in self.kernels]
        if len(set(names)) != len(names):
            raise DescriptorError(
                "Capability.kernels reports one kernel twice",
                arrived=tuple(names),
                allowed="unique names",
                remedy="give each probe its own kernel name",
            )

    def kernel(self, name: str) -> KernelReport:
        """Return the report for ``name``, an ``ABSENT`` one when nothing probed it."""
        for report in self.kernels:
            if report.name == name:
                return report
        return KernelReport(name, "", KernelLevel.ABSENT, f"no installed probe reports {name!r}")

    def version(self, name: str) -> str:
        """Return the version recorded under ``name``, or an empty string."""
        return dict(self.versions).get(name, "")


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a strategy, backend or model needs from a device, declaratively.

    Attributes:
        device_types: acceptable device types; empty means any.
        architectures: exact architecture words; empty means any.
        kernels: kernels that must be at level ``EXECUTED``.
        modules: import names that must be findable (not imported) in this environment.
        refusals: (architecture word, reason) pairs: why a chip that looks like one of ``architectures`` is
            not accepted, in words that end its sentence. Needs ``architectures``, and repeats none of them.
    """

    device_types: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    refusals: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name in ("device_types", "architectures", "kernels", "modules"):
            _check.strings("Requirements", name, getattr(self, name))
        for word in self.architectures:
            if word != word.lower():
                raise DescriptorError(
                    "Requirements.architectures holds a word that no device has: they are lower-case",
                    arrived=word,
                    allowed=word.lower(),
                    remedy="write it as `adaverify doctor` shows it",
                )
        _check.instance("Requirements", "refusals", self.refusals, tuple)
        for pair in self.refusals:
            _check.strings("Requirements", "refusals", pair)
            if not self.architectures or len(pair) != 2 or pair[0] in self.architectures:
                raise DescriptorError(
                    "Requirements.refusals explains what is not refused",
                    arrived=pair,
                    allowed=f"(word, reason) with a word other than {self.architectures}",
                    remedy="list what is accepted in architectures, and neighbours alone in refusals",
                )

    def unmet(self, capability: Capability) -> tuple[str, ...]:
        """Return every unmet requirement in words, all at once; empty when the device fits."""
        reasons = []
        if self.device_types and capability.device_type not in self.device_types:
            reasons.append(f"device type is {capability.device_type}, needs {' or '.join(self.device_types)}")
        if self.architectures and capability.architecture not in self.architectures:
            needed = f"architecture is {capability.architecture}, needs {' or '.join(self.architectures)}"
            why = dict(self.refusals).get(capability.architecture)
            reasons.append(f"{needed}: {why}" if why else needed)
        for name in self.kernels:
            report = capability.kernel(name)
            unasked = capability.assumed and name in {item.name for item in capability.kernels}
            if report.level is KernelLevel.ABSENT and unasked:
                # Nobody looked, so nobody found it absent; the kernel's own report has the rest, once.
                reasons.append(f"kernel {name} was not run on the assumed device, needs executed")
            elif report.level is not KernelLevel.EXECUTED:
                reasons.append(
                    f"kernel {name} is {report.level.name.lower()}, needs executed: {report.reason}"
                )
        reasons.extend(f"module {name} is not installed" for name in self.modules if not _findable(name))
        return tuple(reasons)


def _findable(name: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(name) is not None
    except Exception:  # noqa: BLE001 - the parents of a dotted name are imported, and may raise anything
        return False


@dataclass(frozen=True, slots=True)
class ProbeDescriptor:
    """How to ask a device whether one kernel works.

    Attributes:
        name: the kernel name the resulting report carries.
        device_types: device types on which running the probe makes sense.
        probe: called with the device facts (a ``Capability`` without kernels) and returns a report. It runs a
            tiny problem with a known answer and compares values. It may raise: the caller turns that into an
            ``ABSENT`` report with the error's type and text as the reason.
        architectures: exact architecture words for which the probe makes sense; empty means any.
        isolated_imports: modules that the caller first imports in a child process with all symbols bound at
            once. When one fails there, the probe is not run and the report is ``ABSENT`` with that reason: a
            binary built for another torch may import lazily here and kill this process at its first call.
    """

    name: str
    device_types: tuple[str, ...]
    probe: Callable[[Capability], KernelReport] = field(repr=False)
    architectures: tuple[str, ...] = ()
    isolated_imports: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check.name("ProbeDescriptor", self.name)
        _check.strings("ProbeDescriptor", "device_types", self.device_types)
        _check.callable_field("ProbeDescriptor", "probe", self.probe)
        _check.strings("ProbeDescriptor", "architectures", self.architectures)
        _check.strings("ProbeDescriptor", "isolated_imports", self.isolated_imports)
