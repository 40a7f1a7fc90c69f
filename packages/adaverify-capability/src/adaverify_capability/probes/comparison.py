"""The one rule from values to a level."""

from __future__ import annotations

from collections.abc import Sequence

from adaverify_contracts import KernelLevel, KernelReport

_SHOWN = 8


def compared(
    name: str, version: str, expected: Sequence[float], got: Sequence[float], *, tolerance: float = 0.0
) -> KernelReport:
    """Report ``EXECUTED`` when every value is right, else ``IMPORTED`` with the first wrong values.

    Args:
        name: kernel name of the report.
        version: version of the library that provides it.
        expected: the known answer, flat.
        got: what the device computed, flat.
        tolerance: largest allowed absolute difference, as a share of the largest expected magnitude.
            0 demands equality. A NaN is never right.
    """
    want, have = [float(value) for value in expected], [float(value) for value in got]
    if len(want) != len(have):
        reason = f"wrong values: expected {len(want)} of them, got {len(have)}"
        return KernelReport(name, version, KernelLevel.IMPORTED, reason)
    allowed = tolerance * max((abs(value) for value in want), default=0.0)
    wrong = [i for i, value in enumerate(want) if not abs(value - have[i]) <= allowed]
    if not wrong:
        reason = f"ran on this device and all {len(want)} values were right"
        return KernelReport(name, version, KernelLevel.EXECUTED, reason)
    shown = wrong[:_SHOWN]
    reason = (
        f"wrong values: expected {[want[i] for i in shown]} got {[have[i] for i in shown]} "
        f"at {shown} ({len(wrong)} of {len(want)} wrong)"
    )
    return KernelReport(name, version, KernelLevel.IMPORTED, reason)
