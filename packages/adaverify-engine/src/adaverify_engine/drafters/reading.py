"""Drives a drafter that reads the target: keeps the features by slot and looks up the cached context."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from adaverify_contracts import BlockDrafter, EngineError, TappedModel, TargetModel
from adaverify_engine.attention import ContextRows, DecodeAttentionChoice
from adaverify_engine.drafters.slots import SlotDrafter

if TYPE_CHECKING:
    from adaverify_engine.executor import Executor


class ReadingDrafter(SlotDrafter):
    """A ``BlockDrafter`` with what it reads: features of the last computed position, and the target's KV.

    One pass drafts for all requests of a step. Features of a slot are replaced by those of the last accepted
    position, so that those of refused drafts are nowhere. Contract ``DeviceDrafter``.

    Args:
        block: proposes; it is bound to the executor's model here.
        executor: has the model and the cache that are read.
        reads: False where nothing is drafted: then no pass of the model returns features.

    Raises:
        EngineError: the model shows no features, or the drafter does not fit it.
    """

    def __init__(self, block: BlockDrafter, executor: Executor, *, reads: bool) -> None:
        limits, cache = executor.options.limits, executor.cache
        super().__init__(limits, cache.data.device)
        target, slots = executor.model, limits.max_requests
        taps = bind_block(block, target, cache.dtype)
        executor.read(taps if reads else ())
        self._block, self._attention = block, executor.attention
        if block.queries > limits.max_query_len:
            # The target's attention has room for K + 1 queries a request.
            wide = replace(limits, draft_tokens=block.queries - 1)
            self._attention = DecodeAttentionChoice(target.geometry, wide, cache)
        self._highest, self._max_kv_len = target.geometry.vocabulary - 1, limits.max_kv_len
        self._context = ContextRows(slots, block.queries, self._device)
        # The row behind the last slot takes what padding rows write.
        shape = (slots + 1, len(taps) * target.geometry.hidden)
        self._features = torch.zeros(shape, dtype=cache.dtype, device=self._device)
        self._behind = slots
        self._temperatures = torch.zeros(slots, dtype=torch.float32, device=self._device)
        self._raw = torch.zeros((0, self._width), dtype=torch.int64, device=self._device)
        self._tables = torch.zeros((slots, limits.table_width), dtype=torch.int32, device=self._device)

    @property
    def features(self) -> torch.Tensor:
        """Features by slot, [max_requests, len(taps) x hidden]."""
        return self._features[: self._behind]

    def _begin(self, slots: torch.Tensor) -> None:
        """Forget the features too; a request's own come with its prompt."""
        super()._begin(slots)
        self._features.index_fill_(0, slots, 0.0)

    def place(self, slot: int, pages: np.ndarray, temperature: float = 0.0) -> None:
        """Learn where the request in ``slot`` has its KV, pages int32 [W], and how it is sampled."""
        self.place_rows(np.array([slot]), pages[None], np.array([temperature], dtype=np.float32))

    def place_rows(self, slots: np.ndarray, pages: np.ndarray, temperatures: np.ndarray) -> None:
        """Learn where requests have their KV, and how they are sampled.

        Args:
            slots: int64 [R]; pages: int32 [R, W]; temperatures: float32 [R].
        """
        at, tables, laws = (
            torch.from_numpy(part).to(self._device, non_blocking=True)
            for part in (slots, pages, temperatures)
        )
        self._tables.index_copy_(0, at, tables)
        self._temperatures.index_copy_(0, at, laws)

    def keep(self, slots: np.ndarray, features: torch.Tensor, rows: np.ndarray) -> None:
        """Keep row ``rows[i]`` of ``features`` [N, F] for slot ``slots[i]``: its last computed position."""
        if len(slots):
            to, at = (torch.from_numpy(part).to(self._device, non_blocking=True) for part in (slots, rows))
            self._features.index_copy_(0, to, features[at])

    def keep_accepted(
        self,
        features: torch.Tensor,
        query_start_loc: torch.Tensor,
        accepted: torch.Tensor,
        row_slot: torch.Tensor,
    ) -> None:
        """Keep the features of every row's last accepted position; launches only.

        Args:
            features: [T, F], of a step's query tokens.
            query_start_loc: int32 [R + 1]; accepted: int32 [R]; row_slot: int32 [R], -1 for padding.
        """
        at = (query_start_loc[:-1] + accepted).clamp(max=len(features) - 1).long()
        self._features.index_copy_(0, self._targets(row_slot), features[at])

    @torch.inference_mode()
    def draft(self, row_slot: torch.Tensor) -> None:
        """Write drafts, scores and scheduled of the slots in int32 [R], -1 for padding; launches only."""
        if not len(row_slot):
            return
        state, slot = self._state, row_slot.clamp(min=0).long()
        context = torch.where(row_slot < 0, 0, state.length[slot] - 1).clamp(min=0)
        position = context.long()
        rows, start = self._context.over(context, self._tables[slot])
        attend = self._attention.plan(rows, start, queries=self._context.queries, max_kv_len=self._max_kv_len)
        newest = state.history[slot, position].long()
        drafts, scores = self._block.block(
            self._features[slot], newest, position, self._temperatures[slot], attend
        )
        self._require(drafts, scores, len(row_slot))
        self._raw = drafts
        to = self._targets(row_slot)
        # An id outside the vocabulary would be looked up by the target; a wrong one inside is refused there.
        self._drafts.index_copy_(0, to, drafts.clamp(0, self._highest).int())
        self._scores.index_copy_(0, to, scores)
        self._scheduled.index_fill_(0, to, self._width)

    def _ids(self, index: torch.Tensor) -> torch.Tensor:
        """Return the ids as the drafter gave them, so that those outside the vocabulary are counted."""
        return self._raw

    def _require(self, drafts: torch.Tensor, scores: torch.Tensor, rows: int) -> None:
        """Refuse a block that cannot be written: shapes and types, which the host knows."""
        shape = (rows, self._width)
        if drafts.shape == scores.shape == shape and not drafts.dtype.is_floating_point:
            return
        raise EngineError(
            "the drafter returned a block of another shape or type",
            arrived=[(tuple(one.shape), str(one.dtype)) for one in (drafts, scores)],
            allowed=f"draft tokens int64 and scores float32, both {shape}",
            remedy="build the block as BlockDrafter.block says",
        )

    def _targets(self, row_slot: torch.Tensor) -> torch.Tensor:
        """Return int64 [R]: the slot of each row, the row behind the last slot for padding."""
        return torch.where(row_slot < 0, self._behind, row_slot).long()


def bind_block(block: BlockDrafter, target: TargetModel, dtype: torch.dtype) -> tuple[int, ...]:
    """Bind the drafter to the target and return the layers that it reads, counted from 1.

    Args:
        block: the drafter.
        target: the model.
        dtype: of the model's hidden states.

    Raises:
        EngineError: the model does not show hidden states, or has no such layers.
    """
    geometry = target.geometry
    if not isinstance(target, TappedModel):
        raise EngineError(
            f"the drafter reads hidden states, and the model {geometry.name} does not show them",
            arrived=type(target).__name__,
            allowed="a model with forward_tapped (contract TappedModel)",
            remedy="choose a drafter that reads tokens only, such as n-gram",
        )
    block.bind(target, dtype)
    taps = tuple(block.taps)
    if not taps or list(taps) != sorted(set(taps)) or not 1 <= taps[0] <= taps[-1] <= geometry.layers:
        raise EngineError(
            f"the drafter reads layers that the model {geometry.name} does not have",
            arrived=taps,
            allowed=f"rising numbers in 1 .. {geometry.layers}",
            remedy="use the drafter with the model it was made for",
        )
    return taps
