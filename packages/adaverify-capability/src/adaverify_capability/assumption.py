"""Capabilities by word: every path is selectable on a machine that has none of the hardware."""

from __future__ import annotations

from collections.abc import Iterable

from adaverify_capability.architectures import ARCHITECTURES
from adaverify_contracts import Capability, KernelLevel, KernelReport, UnknownNameError

_GIB = 1024**3


def assume(word: str, kernels: Iterable[str | KernelReport] = ()) -> Capability:
    """Return the capability of a typical device of one architecture, without touching any device.

    Args:
        word: a word of the architecture table: ``sm90``, ``sm100``, ``gfx942``, ``cpu`` and so on.
        kernels: kernel names to take as executed, or whole reports.

    Raises:
        UnknownNameError: the table does not list the word; the error lists what it does.
        DescriptorError: a kernel is named twice or malformed.
    """
    row = ARCHITECTURES.get(word)
    if row is None:
        raise UnknownNameError("architecture", word, tuple(sorted(ARCHITECTURES)))
    return Capability(
        device_type=row.device_type,
        architecture=row.word,
        device_name=f"assumed {row.part}",
        compute_capability=row.compute_capability,
        processors=row.processors,
        memory_bytes=64 * _GIB,
        kernels=tuple(_report(kernel) for kernel in kernels),
        assumed=True,
    )


def _report(kernel: str | KernelReport) -> KernelReport:
    if isinstance(kernel, KernelReport):
        return kernel
    return KernelReport(kernel, "", KernelLevel.EXECUTED, "assumed to be executed; nothing ran")
