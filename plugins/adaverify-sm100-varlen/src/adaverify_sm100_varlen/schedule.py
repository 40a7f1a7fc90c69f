"""The work schedule of each contract: static and rebuilt with the rows, or as a pure reference."""

from __future__ import annotations

import torch

from adaverify_contracts import Limits
from adaverify_metadata import (
    HeadHeavySchedule,
    PairedUnitsSchedule,
    RowSchedule,
    schedule_head_heavy,
    schedule_paired_units,
)
from adaverify_sm100_varlen.deep_gemm.versions import LogitsContract


def make_schedule(
    contract: LogitsContract, limits: Limits, device: str | torch.device, slots: int, *, backend: str
) -> RowSchedule:
    """Return the static schedule that a build of this contract walks; one launch with the Triton backend.

    Args:
        contract: of the loaded build.
        limits: the sizes the buffer is made for.
        device: where it lives.
        slots: processors, as the library counts them.
        backend: ``torch`` or ``triton``.

    Raises:
        LimitsError: slots or sizes out of range.
    """
    if contract.rule == "paired-units":
        return PairedUnitsSchedule(limits, device, slots, backend=backend, split=contract.split)
    return HeadHeavySchedule(
        limits, device, slots, backend=backend, split=contract.split, row_group=contract.row_group
    )


def reference_schedule(
    contract: LogitsContract, lens: torch.Tensor, slots: int, request_indices: torch.Tensor
) -> torch.Tensor:
    """Return the schedule int32 [slots + 1, 2] of a contract (deepgemm sections 8.2 and 8.3).

    Args:
        contract: of the build that will walk it.
        lens: int32 [M, 1], each at least 1.
        slots: processors.
        request_indices: int32 [M].

    Raises:
        LayoutError: indices and lengths disagree.
    """
    if contract.rule == "paired-units":
        return schedule_paired_units(lens, slots, request_indices, split=contract.split)
    return schedule_head_heavy(
        lens, slots, request_indices, split=contract.split, row_group=contract.row_group
    )
