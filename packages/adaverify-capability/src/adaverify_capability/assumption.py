"""Capabilities by word: every path is selectable on a machine that has none of the hardware."""

from __future__ import annotations

from collections.abc import Iterable

from adaverify_capability.architectures import ARCHITECTURES
from adaverify_contracts import Capability, KernelLevel, KernelReport, UnknownNameError

_GIB = 1024**3


def assume(
    word: str, kernels: Iterable[str | KernelReport] = (), *, probed: Iterable[str] = ()
) -> Capability:
    """Return the capability of a typical device of one architecture, without touching any device.

    Args:
        word: a word of the architecture table: ``sm90``, ``sm100``, ``gfx942``, ``cpu`` and so on.
        kernels: kernel names to take as executed, or whole reports.
        probed: names that installed probes report. Those that ``kernels`` does not state are reported as
            absent, since their probes are not run for a device that is not there.

    Raises:
        UnknownNameError: the table does not list the word; the error lists what it does.
        DescriptorError: a kernel is named twice or malformed.
    """
    row = ARCHITECTURES.get(word)
    if row is None:
        raise UnknownNameError("architecture", word, tuple(sorted(ARCHITECTURES)))
    stated = tuple(_report(kernel) for kernel in kernels)
    known = {report.name for report in stated}
    unrun = tuple(_not_run(name, word) for name in probed if name not in known)
    return Capability(
        device_type=row.device_type,
        architecture=row.word,
        device_name=f"assumed {row.part}",
        compute_capability=row.compute_capability,
        processors=row.processors,
        memory_bytes=64 * _GIB,
        kernels=(*stated, *unrun),
        assumed=True,
    )


def _report(kernel: str | KernelReport) -> KernelReport:
    if isinstance(kernel, KernelReport):
        return kernel
    return KernelReport(kernel, "", KernelLevel.EXECUTED, "assumed to be executed; nothing ran")


def _not_run(kernel: str, word: str) -> KernelReport:
    reason = f"its probe was not run, since {word} is only assumed; --kernel {kernel} takes it as executed"
    return KernelReport(kernel, "", KernelLevel.ABSENT, reason)
