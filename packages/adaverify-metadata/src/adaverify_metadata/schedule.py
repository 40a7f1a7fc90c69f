"""Schedule builders: a kernel library's work schedule, rebuilt with the rows in the same graph."""

from __future__ import annotations

from typing import Protocol

import torch

from adaverify_contracts import LayoutError, Limits, LimitsError, ceil_div
from adaverify_metadata.ops.head_heavy.launch import prepare_head_heavy
from adaverify_metadata.ops.head_heavy.reference import require_rows, schedule_head_heavy
from adaverify_metadata.ops.paired_units.launch import prepare_paired_units
from adaverify_metadata.ops.paired_units.reference import schedule_paired_units
from adaverify_metadata.ops.schedule_launch import MAX_SCHEDULE_ROWS, ScheduleLaunch
from adaverify_metadata.ops.tail_heavy.launch import prepare_tail_heavy
from adaverify_metadata.ops.tail_heavy.reference import schedule_tail_heavy


class RowSchedule(Protocol):
    """A static schedule int32 [slots + 1, 2] and how to rewrite it."""

    @property
    def schedule(self) -> torch.Tensor:
        """The static tensor, int32 [slots + 1, 2]; its address never changes."""
        ...

    def build(
        self,
        lens: torch.Tensor,
        request_indices: torch.Tensor | None = None,
        row_lens: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Rewrite and return the schedule for schedule lengths int32 [M, N]; launch-only.

        ``row_lens`` are the true lengths, 0 in padding rows, for rules that leave those out.
        """
        ...


class _StaticSchedule:
    """What the three rules share: buffer, bounds, and the choice between reference and launch."""

    def __init__(
        self, limits: Limits, device: str | torch.device, slots: int, split: int, weight: int
    ) -> None:
        if slots < 1 or split < 1:
            raise LimitsError(
                "a schedule needs at least one slot and a positive split",
                arrived={"slots": slots, "split": split},
                allowed="ints >= 1",
                remedy="pass the kernel library's own processor count and split",
            )
        tasks = limits.max_tokens * ceil_div(limits.max_kv_len, split) * weight
        if tasks > 2**31 - 1:
            raise LimitsError(
                "the prefix sums of a schedule would not fit int32",
                arrived=tasks,
                allowed="max_tokens x ceil(max_kv_len / split) x weight of a row below 2**31",
                remedy="lower max_requests or max_model_len",
            )
        self._split, self._max_rows = split, limits.max_tokens
        self._schedule = torch.zeros(slots + 1, 2, dtype=torch.int32, device=device)
        self._launch: ScheduleLaunch | None = None

    @property
    def schedule(self) -> torch.Tensor:
        """The static tensor, int32 [slots + 1, 2]; its address never changes."""
        return self._schedule

    @property
    def slots(self) -> int:
        """Processors, or pairs of them, that the schedule feeds."""
        return self._schedule.shape[0] - 1

    def build(
        self,
        lens: torch.Tensor,
        request_indices: torch.Tensor | None = None,
        row_lens: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Rewrite and return the schedule; launch-only and capturable with the Triton backend.

        Args:
            lens: int32 [M, N], contiguous, the rows' *schedule* lengths (at least 1).
            request_indices: int32 [M] where the rule groups rows by request, else None.
            row_lens: int32 [M, N], contiguous, the true lengths: the tail-heavy rule leaves out the rows
                behind the last that is not empty; the others schedule all.

        Raises:
            LayoutError: more rows than the limits, or indices or true lengths that do not fit the lengths.
        """
        if lens.dim() != 2 or lens.shape[0] > self._max_rows or not lens.is_contiguous():
            raise LayoutError(
                "schedule lengths have the wrong shape",
                arrived=tuple(lens.shape),
                allowed=f"contiguous [M, N] with M <= {self._max_rows}",
                remedy="pass DecodeRows.schedule_lens of a builder with the same limits",
            )
        if row_lens is not None and (row_lens.shape != lens.shape or not row_lens.is_contiguous()):
            raise LayoutError(
                "true lengths do not fit the schedule lengths",
                arrived=tuple(row_lens.shape),
                allowed=f"contiguous {tuple(lens.shape)}",
                remedy="pass DecodeRows.row_lens beside DecodeRows.schedule_lens",
            )
        if self._launch is None:
            self._schedule.copy_(self._reference(lens, request_indices, row_lens))
        else:
            self._require_indices(lens, request_indices)
            self._launch(lens, request_indices, row_lens)
        return self._schedule

    def _reference(
        self, lens: torch.Tensor, request_indices: torch.Tensor | None, row_lens: torch.Tensor | None
    ) -> torch.Tensor:
        raise NotImplementedError

    def _require_indices(self, lens: torch.Tensor, request_indices: torch.Tensor | None) -> None:
        del lens, request_indices

    def _require_rows(self) -> None:
        if self._max_rows > MAX_SCHEDULE_ROWS:
            raise LimitsError(
                "too many rows for one schedule",
                arrived=self._max_rows,
                allowed=f"max_requests x (K + 1) <= {MAX_SCHEDULE_ROWS} with backend='triton'",
                remedy="lower max_requests, or use backend='torch'",
            )


class TailHeavySchedule(_StaticSchedule):
    """Tail-heavy rule: the last slots take the remainder (deepgemm section 8.1).

    Args:
        limits: sizes; rows are at most ``limits.max_tokens``.
        device: where the schedule lives.
        slots: processors, or pairs of them.
        backend: ``torch`` or ``triton``.
        split: KV positions in one split.
        atoms: units of one row.

    Raises:
        LimitsError: slots, split or sizes out of range.
    """

    def __init__(
        self,
        limits: Limits,
        device: str | torch.device,
        slots: int,
        *,
        backend: str,
        split: int = 256,
        atoms: int = 1,
    ) -> None:
        super().__init__(limits, device, slots, split, atoms)
        self._atoms = atoms
        if backend == "triton":
            self._require_rows()
            self._launch = prepare_tail_heavy(self._max_rows, self._schedule, split, atoms)

    def _reference(
        self, lens: torch.Tensor, request_indices: torch.Tensor | None, row_lens: torch.Tensor | None
    ) -> torch.Tensor:
        del request_indices
        return schedule_tail_heavy(lens, self.slots, self._split, self._atoms, row_lens=row_lens)


class HeadHeavySchedule(_StaticSchedule):
    """Head-heavy rule: units are rows, the first slots take the remainder (deepgemm section 8.2).

    Args:
        limits: sizes; rows are at most ``limits.max_tokens``.
        device: where the schedule lives.
        slots: processors.
        backend: ``torch`` or ``triton``.
        split: KV positions in one split.
        row_group: rows one load serves in the kernel's cost rule, 0 for a cost of one a row.

    Raises:
        LimitsError: slots, split or sizes out of range.
    """

    def __init__(
        self,
        limits: Limits,
        device: str | torch.device,
        slots: int,
        *,
        backend: str,
        split: int = 256,
        row_group: int = 0,
    ) -> None:
        # A run of one row is the dearest per row: 2 g + 1.
        super().__init__(limits, device, slots, split, 2 * row_group + 1)
        self._row_group = row_group
        if backend == "triton":
            self._require_rows()
            self._launch = prepare_head_heavy(self._max_rows, self._schedule, split, row_group)

    def _reference(
        self, lens: torch.Tensor, request_indices: torch.Tensor | None, row_lens: torch.Tensor | None
    ) -> torch.Tensor:
        del row_lens
        return schedule_head_heavy(
            lens, self.slots, request_indices, split=self._split, row_group=self._row_group
        )

    def _require_indices(self, lens: torch.Tensor, request_indices: torch.Tensor | None) -> None:
        require_rows(lens, request_indices)


class PairedUnitsSchedule(_StaticSchedule):
    """Paired-units rule: neighbouring rows of one request pair up, remainder last (deepgemm section 8.3).

    Args:
        limits: sizes; rows are at most ``limits.max_tokens``.
        device: where the schedule lives.
        slots: processors.
        backend: ``torch`` or ``triton``.
        split: KV positions in one split.

    Raises:
        LimitsError: slots, split or sizes out of range.
    """

    def __init__(
        self, limits: Limits, device: str | torch.device, slots: int, *, backend: str, split: int = 256
    ) -> None:
        super().__init__(limits, device, slots, split, 1)
        if backend == "triton":
            self._require_rows()
            self._launch = prepare_paired_units(self._max_rows, self._schedule, split)

    def _reference(
        self, lens: torch.Tensor, request_indices: torch.Tensor | None, row_lens: torch.Tensor | None
    ) -> torch.Tensor:
        del row_lens
        indices = self._given(request_indices)
        return schedule_paired_units(lens, self.slots, indices, split=self._split)

    def _require_indices(self, lens: torch.Tensor, request_indices: torch.Tensor | None) -> None:
        require_rows(lens, self._given(request_indices))

    @staticmethod
    def _given(request_indices: torch.Tensor | None) -> torch.Tensor:
        if request_indices is None:
            raise LayoutError(
                "paired units need request indices",
                arrived=request_indices,
                allowed="int32 [M]",
                remedy="use a strategy that builds request indices",
            )
        return request_indices
