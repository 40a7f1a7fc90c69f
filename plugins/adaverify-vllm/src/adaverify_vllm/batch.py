"""One step of vLLM's scheduler as the planner sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Batch:
    """One scheduled step, requests in the scheduler's order.

    Attributes:
        slots: int64 [R], the rows of vLLM's request state.
        scheduled: int64 [R], draft tokens of each request.
        hopeful: int64 [R], those of them that can be accepted: none while the prompt is still being read.
        certain: query tokens that are not drafts, all requests.
        total: draft tokens, all requests.
        emitting: requests that emit a token.
        others: query tokens beyond one a request: those of prompts' chunks.
    """

    slots: np.ndarray
    scheduled: np.ndarray
    hopeful: np.ndarray
    certain: int
    total: int
    emitting: int
    others: int

    @property
    def requests(self) -> int:
        """R, all requests of the step."""
        return len(self.slots)


class Seats:
    """The slots of a batch's requests, looked up anew only where the requests are others.

    Args:
        state: vLLM's request state.
    """

    def __init__(self, state: Any) -> None:
        self._state = state
        self.forget()

    def forget(self) -> None:
        """Look up the next batch: a request came into a slot."""
        self._names: list[str] | None = None
        self._slots = np.zeros(0, dtype=np.int64)

    def of(self, names: list[str]) -> np.ndarray:
        """Return int64 [R], the rows of vLLM's request state; not to be written to."""
        if names != self._names:
            index = self._state.req_id_to_index
            self._slots = np.fromiter(map(index.__getitem__, names), np.int64, len(names))
            self._names = names
        return self._slots


def read_batch(state: Any, seats: Seats, tokens: Mapping[str, int], drafts: Mapping[str, Sized]) -> Batch:
    """Return the batch of a scheduler's answer.

    Args:
        state: vLLM's request state.
        seats: of its requests.
        tokens: query tokens of each request, drafts included.
        drafts: draft tokens of those requests that have any.
    """
    count = len(tokens)
    scheduled = np.fromiter(map(len, map(drafts.get, tokens, repeat(()))), np.int64, count)
    slots = seats.of(list(tokens))
    computed = state.num_computed_tokens_np[slots]
    prompts = state.prefill_len.np[slots]
    reading = computed < prompts
    total = int(np.add.reduce(scheduled))
    sure = sum(tokens.values()) - total
    hopeful, emitting = scheduled, count
    if np.count_nonzero(reading):
        few = reading.nonzero()[0]
        drafted, queries = scheduled.take(few).tolist(), list(tokens.values())
        wanting = (prompts - computed).take(few).tolist()
        # Few requests read their prompt at once: they are counted without arrays.
        places = zip(few.tolist(), drafted, wanting, strict=True)
        emitting -= sum(queries[place] - more < missing for place, more, missing in places)
        if any(drafted):
            # A prompt's drafts are placeholders of the graph's width: they cost and cannot gain.
            hopeful = np.where(reading, 0, scheduled)
    return Batch(slots, scheduled, hopeful, sure, total, emitting, sure - count)
