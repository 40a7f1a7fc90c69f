"""The static inputs of a step: the addresses that assignment, row builders and graphs read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from adaverify_contracts import DecodeRows, LayoutError, Limits, Plan
from adaverify_runtime.input_checks import (
    is_int,
    require_drafts,
    require_pages,
    require_per_request,
    require_room,
    require_table,
)
from adaverify_verification import Assignment

PerRequest = torch.Tensor | np.ndarray
# Integers before the slots of a command: budget and ring entry.
_COMMAND = 2


@dataclass(frozen=True, slots=True)
class Staged:
    """One step, ready for attention; views that the next ``stage`` rewrites.

    Attributes:
        assignment: which drafts are verified, and every boundary that follows.
        rows: what the attention kernel reads.
        strategy: name of the strategy that built the rows.
        reason: why it was that one.
    """

    assignment: Assignment
    rows: DecodeRows
    strategy: str
    reason: str


class StaticInputs:
    """Per-request inputs at fixed addresses.

    Attributes:
        scheduled: int32 [max_requests], -1 for padding requests.
        kv_lens: int32 [max_requests], 0 for padding requests.
        block_table: int32 [max_requests, table_width]; written only when the caller's table cannot be read
            where it is.
        scores: float32 [max_requests, K] and slots: int64 [max_requests]; written by the prologue of a step
            that is captured whole.
        budget: int32 [1] and entry: int32 [1], B and the relay's ring entry of a step that is captured whole.
        row_slot: int32 [max_requests], its request slots in row order, -1 for padding requests.

    ``budget``, ``entry`` and ``row_slot`` are parts of one tensor: ``command`` writes all three in one copy.

    Args:
        limits: sizes.
        device: run device.
    """

    def __init__(self, limits: Limits, device: torch.device) -> None:
        self._limits = limits
        self._device = device
        requests, width = limits.max_requests, limits.table_width
        # The largest first: what cannot be allocated fails before anything is written.
        self.block_table = torch.zeros((requests, width), dtype=torch.int32, device=device)
        self.scheduled = torch.full((requests,), -1, dtype=torch.int32, device=device)
        self.kv_lens = torch.zeros(requests, dtype=torch.int32, device=device)
        self.scores = torch.zeros((requests, limits.draft_tokens), dtype=torch.float32, device=device)
        self.slots = torch.zeros(requests, dtype=torch.int64, device=device)
        # Padding until the first command, so that a capture runs over nothing but inert rows.
        self._host_command = np.full(_COMMAND + requests, -1, dtype=np.int32)
        self._host_command[:_COMMAND] = 0
        self._command = torch.from_numpy(self._host_command).to(device, copy=True)
        self.budget, self.entry = self._command[0:1], self._command[1:2]
        self.row_slot = self._command[_COMMAND:]

    @property
    def buffers(self) -> Mapping[str, torch.Tensor]:
        """Every static tensor by name; addresses never change."""
        return {
            "scheduled": self.scheduled,
            "kv_lens": self.kv_lens,
            "block_table": self.block_table,
            "scores": self.scores,
            "slots": self.slots,
            "command": self._command,
        }

    def command(self, budget: int, entry: int, slots: np.ndarray) -> None:
        """Enqueue the integers of a step that is captured whole; the only thing the host tells it.

        Args:
            budget: B of the plan.
            entry: ring entry that its confidences go to.
            slots: int64 [R], request slots in row order.
        """
        host, end = self._host_command, _COMMAND + len(slots)
        host[0], host[1] = budget, entry
        host[_COMMAND:end] = slots
        host[end:] = -1
        # From pageable memory: staged by the driver before this returns, so the array may be rewritten.
        self._command.copy_(torch.from_numpy(host), non_blocking=True)

    def load(
        self,
        plan: Plan,
        scheduled: PerRequest,
        kv_lens: PerRequest,
        block_table: torch.Tensor,
        padded_requests: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy a step's per-request inputs and write the padding; return views [padded_requests].

        Everything that can be checked is checked before anything is written, the block table included; values
        only where they are on the host. Copies are enqueued, not waited for, when the sources are pinned or
        on the device.

        Raises:
            LayoutError: an input has another type, dtype, shape or device, a length does not fit the plan or
                the limits, or a host table has no page where the step reads one.
            PlanError: ``scheduled`` is on the host and holds fewer drafts than the plan verifies.
        """
        requests, device = plan.requests, self.block_table.device
        require_per_request("scheduled", scheduled, device)
        require_per_request("kv_lens", kv_lens, device)
        fits = len(scheduled) == len(kv_lens) == requests
        # A float would be cut by the slices below, and a bool is one request.
        if not is_int(padded_requests) or not (
            fits and requests <= padded_requests <= self._limits.max_requests
        ):
            problem = "the staged step does not fit the plan or the limits"
            arrived = {
                "scheduled": len(scheduled),
                "kv_lens": len(kv_lens),
                "plan.requests": requests,
                "padded_requests": padded_requests,
            }
            allowed = (
                f"one entry a planned request, padded_requests in {requests} .. {self._limits.max_requests}"
            )
            remedy = "pass the requests of the plan, in its order"
            raise LayoutError(problem, arrived=arrived, allowed=allowed, remedy=remedy)
        require_drafts(plan, scheduled, self._limits)
        require_room(kv_lens, self._limits)
        require_table(block_table, requests, self._limits, device)
        require_pages(block_table, scheduled, kv_lens, self._limits)
        for target, source, padding in ((self.scheduled, scheduled, -1), (self.kv_lens, kv_lens, 0)):
            tensor = torch.from_numpy(source) if isinstance(source, np.ndarray) else source
            target[:requests].copy_(tensor, non_blocking=True)
            target[requests:padded_requests].fill_(padding)
        return self.scheduled[:padded_requests], self.kv_lens[:padded_requests]

    def table(self, block_table: torch.Tensor, requests: int, padded_requests: int) -> torch.Tensor:
        """Return int32 [padded_requests, W]: the caller's table where it is, else a copy of its rows.

        A table on the run device with a row for each padded request is read in place. A shorter one is copied
        into the static table. ``load`` has checked it.
        """
        in_place = block_table.dtype == torch.int32 and block_table.device == self.block_table.device
        if in_place and len(block_table) >= padded_requests:
            return block_table[:padded_requests]
        return self.copy_table(block_table, requests)[:padded_requests]

    def copy_table(self, block_table: torch.Tensor, requests: int) -> torch.Tensor:
        """Copy the rows of real requests into the static table and return it whole.

        Raises:
            LayoutError: another type, dtype or width, or fewer rows than there are requests.
        """
        require_table(block_table, requests, self._limits, self.block_table.device)
        self.block_table[:requests].copy_(block_table[:requests], non_blocking=True)
        return self.block_table


def longest_context(kv_lens: PerRequest, plan: Plan, limits: Limits) -> int | None:
    """Return an upper bound of the step's longest KV length; None where only the device knows.

    Args:
        kv_lens: int32 [R]; KV length of each request before the step.
        plan: the step's plan; nobody has more query tokens than its budget and the certain one.
        limits: sizes.
    """
    host = isinstance(kv_lens, np.ndarray) or (
        isinstance(kv_lens, torch.Tensor) and kv_lens.device.type == "cpu"
    )
    if not host or not len(kv_lens):
        return None
    own = min(plan.budget, limits.draft_tokens) + 1
    return min(int(kv_lens.max()) + own, limits.max_kv_len)
