"""Launch parameters of the row kernels, as a value with the reason for each number."""

from __future__ import annotations

from dataclasses import dataclass

from adaverify_contracts import DescriptorError


def next_power_of_two(value: int) -> int:
    """Return the smallest power of two that is not below ``value``; 1 for values below 1."""
    return 1 << max(0, value - 1).bit_length()


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """How a row kernel spreads over the device. Results never depend on it; only time does.

    Attributes:
        rows_per_program: rows one program builds. 1: a step of 62 rows then still spreads over 62 processors,
            and the rows of the largest step (1121 measured in numbers.md) fit one wave of 132 processors
            anyway.
        table_columns: table columns copied in one iteration. 2048: the whole table of a 131072-token sequence
            at page 64; with 4 warps that is four 16-byte loads in flight a thread before the first store
            waits.
        num_warps: warps of one program. 4: at 1024 requests each thread compares 8 of them, and the copy of a
            full table row stays within four loads.
    """

    rows_per_program: int = 1
    table_columns: int = 2048
    num_warps: int = 4

    def __post_init__(self) -> None:
        for name, lowest in (("rows_per_program", 1), ("table_columns", 4), ("num_warps", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < lowest or value != next_power_of_two(value):
                raise DescriptorError(
                    f"LaunchConfig.{name} is out of range",
                    arrived=value,
                    allowed=f"a power of two >= {lowest}",
                    remedy="Triton's blocks are powers of two; choose one",
                )
