"""Static step buffers, and the gather from device boundaries to token ids, positions and KV slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from adaverify_contracts import DraftBatch, Limits
from adaverify_engine.scheduler import PrefillChunk

if TYPE_CHECKING:
    from adaverify_verification import Assignment


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """Per query token: ``ids``, ``positions`` and KV ``slots``, each int64 [T] on the device."""

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor

    def joined(self, other: TokenInputs) -> TokenInputs:
        """Return these tokens followed by ``other``'s."""
        return TokenInputs(
            torch.cat((self.ids, other.ids)),
            torch.cat((self.positions, other.positions)),
            torch.cat((self.slots, other.slots)),
        )

    def padded(self, count: int) -> TokenInputs:
        """Return these tokens and ``count`` of padding: id 0 at position 0, stored on the null page."""
        if not count:
            return self
        parts = (self.ids, self.positions, self.slots)
        return TokenInputs(*(functional.pad(part, (0, count)) for part in parts))


class StepBuffers:
    """Per-request inputs of a decode step, at fixed addresses on the device.

    The host fills them with ``load`` before a step; everything after reads the device: ``decode_tokens`` is a
    function of these buffers and the assignment over static shapes, so it may be captured.

    Attributes:
        certain: int64 [max_requests], the token each request is sure of.
        drafts: int64 [max_requests, K], -1 where undrafted.
        scheduled: int32 [max_requests]; kv_lens: int32 [max_requests], KV length before the step.
        block_table: int32 [max_requests, W].
    """

    def __init__(self, limits: Limits, device: torch.device) -> None:
        rows, k = limits.max_requests, limits.draft_tokens
        self._page_size = limits.page_size
        self.certain = torch.zeros(rows, dtype=torch.int64, device=device)
        self.drafts = torch.full((rows, k), -1, dtype=torch.int64, device=device)
        self.scheduled = torch.zeros(rows, dtype=torch.int32, device=device)
        self.kv_lens = torch.zeros(rows, dtype=torch.int32, device=device)
        self.block_table = torch.zeros((rows, limits.table_width), dtype=torch.int32, device=device)

    def load(
        self,
        certain: np.ndarray,
        kv_lens: np.ndarray,
        batch: DraftBatch,
        table: np.ndarray,
    ) -> None:
        """Copy this step's host values in; rows past the R requests become padding.

        Args:
            certain: int64 [R], the token each request is sure of, in batch order.
            kv_lens: int64 [R], KV length of each before the step.
            batch: their drafts.
            table: int32 [R, W], block table.
        """
        count = len(certain)
        self.certain[:count].copy_(torch.from_numpy(certain), non_blocking=True)
        self.kv_lens[:count].copy_(torch.from_numpy(kv_lens.astype(np.int32)), non_blocking=True)
        self.scheduled[:count].copy_(torch.from_numpy(batch.scheduled.astype(np.int32)), non_blocking=True)
        self.drafts[:count].copy_(batch.tokens, non_blocking=True)
        self.block_table[:count].copy_(torch.from_numpy(table), non_blocking=True)
        self.kv_lens[count:] = 0
        self.scheduled[count:] = -1
        self.block_table[count:] = 0

    def decode_tokens(
        self, assignment: Assignment, kv_lens: torch.Tensor, block_table: torch.Tensor
    ) -> TokenInputs:
        """Return the decode tokens in row order; a padding token is id 0 at position 0 on the null page.

        Args:
            assignment: whose tokens they are.
            kv_lens: int32 [R], KV length of each row before the step.
            block_table: int32 [R, W], by row.
        """
        request, offset = assignment.token_request.long(), assignment.token_offset.long()
        real = request >= 0
        request, offset = request.clamp(min=0), offset.clamp(min=0)
        table = torch.cat((self.certain[:, None], self.drafts.clamp(min=0)), dim=1)
        positions = torch.where(real, kv_lens[request] + offset, 0)
        pages = block_table[request, positions // self._page_size]
        slots = torch.where(real, pages * self._page_size + positions % self._page_size, 0)
        return TokenInputs(torch.where(real, table[request, offset], 0), positions, slots)


def prompt_rows(chunks: Sequence[PrefillChunk], table: np.ndarray, page_size: int, room: int) -> np.ndarray:
    """Return int64 [3, room]: ids, positions and KV slots of the prompt tokens of ``chunks``, in their order.

    What is left of ``room`` is padding: id 0 at position 0, stored on the null page.

    Args:
        chunks: of at most ``room`` tokens.
        table: int32 [max_requests, W], the host's block table by slot.
        page_size: tokens in one page.
        room: columns.
    """
    rows, end = np.zeros((3, room), dtype=np.int64), 0
    for chunk in chunks:
        begin, end = end, end + chunk.length
        at = np.arange(chunk.start, chunk.start + chunk.length)
        pages = table[chunk.request.slot].astype(np.int64)
        rows[0, begin:end] = chunk.request.prompt[chunk.start : chunk.start + chunk.length]
        rows[1, begin:end] = at
        rows[2, begin:end] = pages[at // page_size] * page_size + at % page_size
    return rows


def prefill_tokens(
    chunks: Sequence[PrefillChunk], table: np.ndarray, page_size: int, device: torch.device
) -> TokenInputs:
    """Return the prompt tokens of ``chunks``, one after the other; arguments as for ``prompt_rows``.

    One copy to ``device``, which is not waited for.
    """
    tokens = sum(chunk.length for chunk in chunks)
    # Rows of an even length, so that each begins at a multiple of 16 bytes, which Triton compiles for.
    rows = prompt_rows(chunks, table, page_size, tokens + tokens % 2)
    ids, positions, slots = torch.from_numpy(rows).to(device, non_blocking=True)[:, :tokens]
    return TokenInputs(ids, positions, slots)
