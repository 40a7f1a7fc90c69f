"""Continuous batching: who runs, in which slot, and how many prompt tokens this step."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from adaverify_contracts import EngineError, ceil_div
from adaverify_engine.batch import Batch
from adaverify_engine.options import EngineOptions
from adaverify_engine.pages import NULL_PAGE, PageAllocator
from adaverify_engine.request import Request
from adaverify_engine.running import Running


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Prompt tokens ``start .. start + length - 1`` of one request; ``final`` when the prompt ends here."""

    request: Request
    start: int
    length: int

    @property
    def final(self) -> bool:
        """Whether this chunk computes the last prompt token, so that the request emits its first token."""
        return self.start + self.length == self.request.prompt_len


@dataclass(frozen=True, slots=True)
class Work:
    """What one step runs: decode requests by rising slot, then prefill chunks by arrival."""

    batch: Batch
    chunks: tuple[PrefillChunk, ...]

    @property
    def decode(self) -> tuple[Request, ...]:
        """The decode requests."""
        return self.batch.requests

    @property
    def finals(self) -> tuple[PrefillChunk, ...]:
        """Chunks whose request emits a token in this step."""
        return tuple(chunk for chunk in self.chunks if chunk.final)


class Scheduler:
    """Slots, pages and the queue.

    Policy: arrival order. A request starts when a slot is free and the pages of its *worst case* (prompt plus
    every token it may emit) are free; they stay its own until it ends. So nothing that started is ever thrown
    out for want of pages, and a large request at the head waits without being overtaken. A request whose
    worst case exceeds the whole pool could never start and is refused when it is added.

    Args:
        options: sizes of the engine.
    """

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._width = options.limits.table_width
        self._allocator = PageAllocator(options.pool_pages)
        self._waiting: deque[Request] = deque()
        self._owners: list[Any] = [None] * options.max_requests
        # The lowest free slot is taken, so that batches stay in front and their rows in order.
        self._free = list(range(options.max_requests))
        heapify(self._free)
        # What runs for as long as nobody begins, ends or has prompt tokens left.
        self._steady: Work | None = None
        self.running = Running(options.limits)
        self.generations = self.running.generations
        self.block_table = np.full((options.max_requests, self._width), NULL_PAGE, dtype=np.int32)

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self._waiting and len(self._free) == len(self._owners)

    @property
    def waiting(self) -> int:
        """Requests that have not started."""
        return len(self._waiting)

    @property
    def free_pages(self) -> int:
        """Pages nobody owns."""
        return self._allocator.available

    def submit(self, request: Request) -> None:
        """Queue ``request``.

        Raises:
            EngineError: its worst case needs more pages than the pool has.
        """
        pages = self._pages(request)
        if pages > self._allocator.capacity:
            raise EngineError(
                "the request can never fit the KV pool",
                arrived=(
                    f"{request.prompt_len} prompt + {request.max_output} output tokens = {pages} pages of "
                    f"{self._options.page_size}"
                ),
                allowed=f"at most {self._allocator.capacity} pages",
                remedy="shorten the prompt, lower max_tokens, or raise num_pages",
            )
        self._waiting.append(request)

    def admit(self) -> list[Request]:
        """Start waiting requests in arrival order while slots and pages last; return those started."""
        started = []
        while self._waiting and self._free:
            request, slot = self._waiting[0], self._free[0]
            pages = self._allocator.allocate(self._pages(request), home=1 + slot * self._width)
            if pages is None:
                break
            self._waiting.popleft()
            heappop(self._free)
            request.slot, request.pages, request.running = slot, pages, self.running
            self._owners[slot], self._steady = request, None
            self.running.open(request)
            # The whole row is rewritten: no page of the slot's last owner may stay reachable.
            self.block_table[slot] = NULL_PAGE
            self.block_table[slot, : len(pages)] = pages
            started.append(request)
        return started

    def work(self) -> Work:
        """Return what the next step runs. A request is prefill exactly while computed < prompt length."""
        if self._steady is not None:
            return self._steady
        running = self.running
        prefill = running.live & (running.computed < running.prompt)
        batch = self.batch(np.flatnonzero(running.live & ~prefill))
        if prefill.any():
            return Work(batch, self._chunks(prefill))
        self._steady = Work(batch, ())
        return self._steady

    def batch(self, slots: np.ndarray) -> Batch:
        """Return the decode requests in ``slots`` int64 [R], all of them taken."""
        return Batch.of(self.running, slots, self.owners(slots))

    def owners(self, slots: np.ndarray) -> tuple[Request, ...]:
        """Return the requests in ``slots`` int64 [R], all of them taken."""
        owners = self._owners
        return tuple([owners[slot] for slot in slots.tolist()])

    def kv_tokens(self, slots: np.ndarray) -> int:
        """Return KV lengths of ``slots`` int64 [R], certain tokens included, summed."""
        return int(self.running.computed[slots].sum()) + len(slots)

    def _chunks(self, prefill: np.ndarray) -> tuple[PrefillChunk, ...]:
        """Return the prompt tokens of a step, by arrival; ``prefill`` bool [S] says whose are left."""
        slots = np.flatnonzero(prefill)
        left, chunks = self._options.prefill_chunk, []
        for request in self.owners(slots[np.argsort(self.running.arrival[slots])]):
            if not left:
                break
            done = request.computed
            length = min(left, request.prompt_len - done)
            chunks.append(PrefillChunk(request, done, length))
            left -= length
        return tuple(chunks)

    def release(self, request: Request) -> None:
        """Give back the slot and pages of a finished request."""
        self._allocator.release(request.pages)
        self._owners[request.slot] = self._steady = None
        heappush(self._free, request.slot)
        self.running.close(request)
        request.leave()
        self.block_table[request.slot] = NULL_PAGE

    def _pages(self, request: Request) -> int:
        return ceil_div(request.worst_case_kv, self._options.page_size)
