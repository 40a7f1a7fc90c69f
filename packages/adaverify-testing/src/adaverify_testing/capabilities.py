"""Capabilities of devices this machine does not have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from adaverify_capability import assume
from adaverify_contracts import Capability, KernelLevel, KernelReport


def fake_capability(
    word: str = "cpu",
    kernels: Iterable[str | KernelReport] | Mapping[str, KernelLevel] = (),
) -> Capability:
    """Return the capability of a typical device of one architecture; no device is touched.

    Args:
        word: a word of the capability package's architecture table, for instance ``cpu``.
        kernels: names of kernels taken as executed, whole reports, or a mapping from name to level.

    Raises:
        UnknownNameError: the architecture is not in the table.
    """
    if isinstance(kernels, Mapping):
        reason = "set by the test"
        kernels = [KernelReport(name, "", level, reason) for name, level in kernels.items()]
    return assume(word, kernels=kernels)
