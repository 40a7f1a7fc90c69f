"""Records and cursors on the run device."""

from __future__ import annotations

import numpy as np
import torch

from adaverify_contracts import LayoutError, Limits
from adaverify_engine.ops.recorded.layout import RecordSlots, RecordTables


class RecordedState:
    """The records of a run and where each request stands in them.

    Args:
        limits: sizes.
        device: run device.
        scores: float [P, K] on the host; accepted: integers [P] on the host, 0 .. K.
        context: KV length that every request starts with and wraps to.

    Attributes:
        tables: records on the device.
        slots: cursors, KV lengths and pages by slot.
        context: as given; bound: largest KV length before a step.

    Raises:
        LayoutError: records of another K, or no room behind the context.
    """

    def __init__(
        self,
        limits: Limits,
        device: torch.device,
        scores: np.ndarray,
        accepted: np.ndarray,
        context: int,
    ) -> None:
        width, bound = limits.draft_tokens, limits.max_model_len - 1
        if scores.shape != (len(accepted), width) or not 0 <= context <= bound:
            raise LayoutError(
                "the records do not fit the limits",
                arrived={"scores": scores.shape, "accepted": accepted.shape, "context": context},
                allowed=f"[P, {width}] and [P], a context in 0 .. {bound}",
                remedy="take records of the same K, and limits with room behind the context",
            )
        self.context, self.bound = context, bound
        self.tables = RecordTables(
            torch.from_numpy(np.ascontiguousarray(scores, dtype=np.float32)).to(device),
            torch.from_numpy(np.ascontiguousarray(accepted, dtype=np.int32)).to(device),
        )
        count = limits.max_requests

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self.slots = RecordSlots(
            cursor=zeros(count),
            begin=zeros(count),
            end=zeros(count),
            kv_len=zeros(count),
            prefix=zeros(count),
            block_table=zeros(count, limits.table_width),
            control=zeros(2),
        )

    def reset(self, cursor: np.ndarray, begin: np.ndarray, end: np.ndarray) -> None:
        """Enqueue new cursors int [R] inside their sequences, everybody at the start context.

        Slots past R keep to themselves. Raises ``LayoutError`` where a cursor is outside its sequence or a
        sequence is too short to wrap in.
        """
        shortest = self.tables.scores.shape[1] + 1
        inside = (begin <= cursor) & (cursor < end) & (end - begin >= shortest)
        if not len(cursor) == len(begin) == len(end) or not inside.all():
            raise LayoutError(
                "a request stands outside its sequence, or its sequence is too short",
                arrived={"outside": int((~inside).sum())},
                allowed=f"begin <= cursor < end, and at least {shortest} positions",
                remedy="start requests inside sequences that are long enough",
            )
        for target, values in ((self.slots.cursor, cursor), (self.slots.begin, begin), (self.slots.end, end)):
            target[: len(values)].copy_(torch.from_numpy(values.astype(np.int32)), non_blocking=True)
        self.slots.kv_len.fill_(self.context)

    def control(self, scheduled: int, *, forced: bool = False) -> None:
        """Enqueue how many drafts everyone schedules; ``forced``, what ``force`` uploads says it instead."""
        values = torch.tensor([scheduled, int(forced)], dtype=torch.int32)
        self.slots.control.copy_(values, non_blocking=True)

    def force(self, prefix: np.ndarray) -> None:
        """Enqueue the drafts int [R] that each slot schedules in the next forced step."""
        # From pageable memory: staged by the driver before this returns.
        values = torch.from_numpy(np.ascontiguousarray(prefix, dtype=np.int32))
        self.slots.prefix[: len(prefix)].copy_(values, non_blocking=True)

    def pages(self, table: np.ndarray) -> None:
        """Give every slot its pages, int32 [S, W]."""
        self.slots.block_table.copy_(torch.from_numpy(np.ascontiguousarray(table, dtype=np.int32)))
