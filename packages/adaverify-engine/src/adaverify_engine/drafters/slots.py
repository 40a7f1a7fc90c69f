"""What every drafter with state on the device shares: tokens by slot, and proposals read from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from adaverify_contracts import DraftBatch, DraftState, Limits


class SlotDrafter(ABC):
    """Keeps ``DraftState``; whoever derives from it writes drafts and scores in ``draft``.

    Contract ``DeviceDrafter``. Row S of what ``draft`` writes is behind the last slot: it takes what padding
    rows write, so that torch operations need no mask.

    Args:
        limits: sizes; slots are numbered 0 .. max_requests - 1.
        device: run device.
    """

    def __init__(self, limits: Limits, device: torch.device) -> None:
        slots, width, columns = limits.max_requests, limits.draft_tokens, limits.max_kv_len + 1
        self._width, self._columns = width, columns
        self._device = device
        self._drafts = torch.full((slots + 1, width), -1, dtype=torch.int32, device=device)
        self._scores = torch.zeros((slots + 1, width), dtype=torch.float32, device=device)
        self._scheduled = torch.zeros(slots + 1, dtype=torch.int32, device=device)
        self._state = DraftState(
            history=torch.zeros((slots, columns), dtype=torch.int32, device=device),
            length=torch.zeros(slots, dtype=torch.int32, device=device),
            drafts=self._drafts[:slots],
            scores=self._scores[:slots],
            scheduled=self._scheduled[:slots],
            hits=torch.zeros(slots, dtype=torch.float32, device=device),
            trials=torch.zeros(slots, dtype=torch.float32, device=device),
        )
        self._rows = torch.full((slots,), -1, dtype=torch.int32, device=device)
        self._lengths = np.zeros(slots, dtype=np.int64)

    @property
    def state(self) -> DraftState:
        """The state by slot."""
        return self._state

    @abstractmethod
    def draft(self, row_slot: torch.Tensor) -> None:
        """Write drafts, scores and scheduled of the slots in int32 [R], -1 for padding; launches only."""

    def advanced(self, slot: int, count: int) -> None:
        """Learn that the device appended ``count`` tokens to the slot by itself."""
        self._lengths[slot] += count

    def advanced_rows(self, slots: np.ndarray, counts: np.ndarray) -> None:
        """Learn that the device appended ``counts[r]`` tokens to each of ``slots`` int64 [R] by itself."""
        self._lengths[slots] += counts

    def start(self, slot: int, prompt: Sequence[int]) -> None:
        """Begin a request in ``slot``; whatever the slot held before is gone."""
        self._lengths[slot] = 0
        self._begin(torch.tensor([slot], device=self._device))
        self.extend(slot, prompt)

    def start_rows(self, slots: np.ndarray, prompts: Sequence[Sequence[int]]) -> None:
        """Begin a request in each of ``slots`` int64 [R]; a few launches for all of them."""
        self._lengths[slots] = 0
        counts = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
        tokens = np.zeros((len(slots), int(counts.max(initial=1))), dtype=np.int64)
        for row, prompt in zip(tokens, prompts, strict=True):
            row[: len(prompt)] = prompt
        self._begin(self._append(slots, tokens, counts))

    def _begin(self, slots: torch.Tensor) -> None:
        """Forget whatever ``slots`` int64 [R], on the device, held before; launches only."""
        self._state.hits.index_fill_(0, slots, 0.0)
        self._state.trials.index_fill_(0, slots, 0.0)

    def extend(self, slot: int, tokens: Sequence[int]) -> None:
        """Append emitted tokens; enqueued, not waited for."""
        begin = int(self._lengths[slot])
        end = begin + len(tokens)
        new = torch.tensor(tokens, dtype=torch.int32)
        self._state.history[slot, begin:end].copy_(new, non_blocking=True)
        self._state.length[slot].fill_(end)
        self._lengths[slot] = end

    def extend_rows(self, slots: np.ndarray, tokens: np.ndarray, counts: np.ndarray) -> None:
        """Append the first ``counts[r]`` of ``tokens`` [R, W] to each of ``slots``; one copy for all rows.

        Args:
            slots: int64 [R], no slot twice; counts: int64 [R].
            tokens: integers.
        """
        if len(slots):
            self._append(slots, tokens, counts)

    def _append(self, slots: np.ndarray, tokens: np.ndarray, counts: np.ndarray) -> torch.Tensor:
        """Append as ``extend_rows`` does; return the slots on the device."""
        begin, total = self._lengths[slots], int(counts.sum())
        # Where each new token goes in the flattened history, and what it is; behind them slots and lengths.
        real = np.arange(tokens.shape[1]) < counts[:, None]
        at = ((slots * self._columns + begin)[:, None] + np.arange(tokens.shape[1]))[real]
        news = np.concatenate((at, tokens[real], slots, begin + counts), dtype=np.int64)
        sent = torch.from_numpy(news).to(self._device, non_blocking=True)
        where, what, whose, long = torch.split(sent, [total, total, len(slots), len(slots)])
        self._state.history.view(-1).index_copy_(0, where, what.int())
        self._state.length.index_copy_(0, whose, long.int())
        self._lengths[slots] = begin + counts
        return whose

    def propose(self, slots: Sequence[int], room: np.ndarray) -> DraftBatch:
        """Return up to ``room[i]`` tokens for slot i, as device tensors; nothing is read back."""
        count = len(slots)
        if not count or not self._width:
            empty = torch.full((count, self._width), -1, dtype=torch.int64, device=self._device)
            return DraftBatch(empty, np.zeros(count, dtype=np.int64), empty.float().zero_())
        rows = torch.tensor(list(slots), dtype=torch.int32)
        self._rows[:count].copy_(rows, non_blocking=True)
        self.draft(self._rows[:count])
        index = self._rows[:count].long()
        scheduled = np.clip(np.asarray(room, dtype=np.int64), 0, self._width)
        ends = torch.from_numpy(scheduled).to(self._device, non_blocking=True)
        real = torch.arange(self._width, device=self._device) < ends[:, None]
        tokens = torch.where(real, self._ids(index), -1)
        return DraftBatch(tokens, scheduled, torch.where(real, self._state.scores[index], 0.0))

    def _ids(self, index: torch.Tensor) -> torch.Tensor:
        """Return the ids [R, K] that ``draft`` has just written for the slots in int64 [R]."""
        return self._state.drafts[index].long()

    def stop(self, slot: int) -> None:
        """Forget the request in ``slot``."""
        self.stop_rows(np.array([slot], dtype=np.int64))

    def stop_rows(self, slots: np.ndarray) -> None:
        """Forget the requests in ``slots`` int64 [R]."""
        self._lengths[slots] = 0
        at = torch.from_numpy(slots).to(self._device, non_blocking=True)
        self._state.length.index_fill_(0, at, 0)
