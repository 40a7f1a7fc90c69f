"""What the host knows of the running requests, by slot: one operation a step instead of one a request."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from adaverify_contracts import Limits

if TYPE_CHECKING:
    from adaverify_engine.request import Request

_FEW = 8
"""Up to so many stop tokens are compared one by one, which is faster than a search among them."""

_LARGEST_ID = 2**31 - 1


class Running:
    """Facts of running requests in arrays by slot, so that a step reads and writes all of them at once.

    A request is here from its admission to its end. Rows of free slots hold what their last owner left: ask
    ``live`` or ``holds`` first.

    Args:
        limits: sizes; S = max_requests.

    Attributes:
        live: bool [S], whether a request owns the slot; generations: int64 [S], how many have owned it.
        arrival: int64 [S], rising with admission; ids: int64 [S]; keys: int64 [S].
        prompt: int64 [S], prompt tokens; computed: int64 [S], tokens whose KV is valid.
        emitted: int64 [S], tokens handed out; most: int64 [S], how many at most; steps: int64 [S].
        temperature: float32 [S]; top_p: float32 [S].
        sampled, sensitive, teaches, penalised, logprobs: bool [S], of the sampling parameters.
        watched: bool [S], stop texts are looked for; streams: bool [S], text is due in every event.
        watching, streaming, logging, drawing: running requests with stop texts, whose text is due in every
            event, with log-probabilities, and whose tokens are drawn.
    """

    def __init__(self, limits: Limits) -> None:
        slots = limits.max_requests

        def column(kind: type) -> np.ndarray:
            return np.zeros(slots, dtype=kind)

        self.live, self.generations, self.arrival = column(bool), column(np.int64), column(np.int64)
        self.ids, self.keys, self.prompt = column(np.int64), column(np.int64), column(np.int64)
        self.computed, self.emitted, self.most = column(np.int64), column(np.int64), column(np.int64)
        self.steps = column(np.int64)
        self.temperature, self.top_p = column(np.float32), column(np.float32)
        self.sampled, self.sensitive, self.teaches = column(bool), column(bool), column(bool)
        self.penalised, self.logprobs = column(bool), column(bool)
        self.watched, self.streams = column(bool), column(bool)
        # Whole rows of a step are written, what lies behind the last token that counts included.
        self._row = limits.max_model_len + limits.draft_tokens + 1
        # Pages of these are the operating system's until something is written to them.
        self._tokens = np.zeros(slots * self._row, dtype=np.int32)
        self._gaps = np.zeros(slots * self._row, dtype=np.float32)
        self._place = np.arange(limits.draft_tokens + 1)
        self._stops: Counter[int] = Counter()
        self._distinct = np.zeros(0, dtype=np.int32)
        self._arrived = 0
        self.watching = self.streaming = self.logging = self.drawing = 0

    def open(self, request: Request) -> None:
        """Take over a request that was given a slot."""
        slot, sampling = request.slot, request.sampling
        self._arrived += 1
        self.generations[slot] += 1
        self.arrival[slot], self.ids[slot], self.keys[slot] = self._arrived, request.id, request.key
        self.prompt[slot], self.computed[slot] = request.prompt_len, request.begun
        self.most[slot], self.steps[slot] = request.max_output, 0
        self.temperature[slot], self.top_p[slot] = sampling.temperature, sampling.top_p
        self.sampled[slot], self.sensitive[slot] = not sampling.greedy, sampling.trim_sensitive
        self.teaches[slot], self.penalised[slot] = sampling.teaches, sampling.penalised
        self.logprobs[slot], self.watched[slot] = sampling.logprobs, request.text.watches
        self.streams[slot] = sampling.stream
        self.emitted[slot] = len(request.given)
        self._tokens[self._span(slot)] = request.given
        self._count(request, 1)
        self.live[slot] = True

    def close(self, request: Request) -> None:
        """Let go of a request that ended."""
        self._count(request, -1)
        self.live[request.slot] = False

    def holds(self, slots: np.ndarray, generations: np.ndarray) -> np.ndarray:
        """Return bool [R]: whether the requests that had ``slots`` int64 [R] in ``generations`` still run."""
        return np.asarray(self.live[slots] & (self.generations[slots] == generations))

    def output(self, slot: int) -> list[int]:
        """Return the tokens handed out of the request in ``slot``."""
        tokens: list[int] = self._tokens[self._span(slot)].tolist()
        return tokens

    def gaps(self, slot: int) -> list[float]:
        """Return the gap of each token of the request in ``slot``, NaN where it was drawn."""
        gaps: list[float] = self._gaps[self._span(slot)].tolist()
        return gaps

    def newest(self, slots: np.ndarray) -> np.ndarray:
        """Return int64 [R], the last token handed out of each of ``slots``."""
        return self._tokens[slots * self._row + self.emitted[slots] - 1].astype(np.int64)

    def room(self, slots: np.ndarray) -> np.ndarray:
        """Return int64 [R], tokens that each of ``slots`` may still emit."""
        return np.asarray(self.most[slots] - self.emitted[slots])

    def append(self, slots: np.ndarray, counts: np.ndarray, tokens: np.ndarray, gaps: np.ndarray) -> None:
        """Hand out the first ``counts[r]`` tokens of each row.

        Args:
            slots: int64 [R], no slot twice; counts: int64 [R].
            tokens: [R, K + 1]; gaps: float32 [R, K + 1], kept as NaN for requests whose tokens are drawn.
        """
        if self.drawing:
            gaps = np.where(self.sampled[slots][:, None], np.float32(np.nan), gaps)
        before = self.emitted[slots]
        # What lies behind ``emitted`` is never read, and the next tokens are written over it.
        at = (slots * self._row + before)[:, None] + self._place
        self._tokens[at], self._gaps[at] = tokens, gaps
        self.emitted[slots] = before + counts

    def careful(self, slots: np.ndarray, tokens: np.ndarray, counts: np.ndarray) -> np.ndarray | None:
        """Return bool [R], rows that something in their tokens may end; None for none of them.

        These are the requests with stop texts, and rows with a stop token of any running request among their
        first ``counts[r]``: theirs or another's.

        Args:
            slots: int64 [R].
            tokens: [R, K + 1]; counts: int64 [R].
        """
        watched = self.watched[slots] if self.watching else None
        stopping = self._stopping(tokens, counts)
        if watched is None or stopping is None:
            return stopping if watched is None else watched
        return np.asarray(watched | stopping)

    def _stopping(self, tokens: np.ndarray, counts: np.ndarray) -> np.ndarray | None:
        found = None
        if len(self._distinct) > _FEW:
            found = np.isin(tokens, self._distinct)
        else:
            for stop in self._distinct:
                found = tokens == stop if found is None else found | (tokens == stop)
        if found is None or not np.count_nonzero(found):
            return None
        return np.asarray((found & (self._place < counts[:, None])).any(axis=1))

    def _count(self, request: Request, change: int) -> None:
        sampling = request.sampling
        self.watching += change * request.text.watches
        self.streaming += change * sampling.stream
        self.logging += change * sampling.logprobs
        self.drawing += change * (not sampling.greedy)
        known = len(self._stops)
        for token in request.stop_tokens:
            self._stops[token] += change
            if not self._stops[token]:
                del self._stops[token]
        if len(self._stops) != known:
            ids = [token for token in self._stops if token <= _LARGEST_ID]
            self._distinct = np.array(ids, dtype=np.int32)

    def _span(self, slot: int) -> slice:
        begin = slot * self._row
        return slice(begin, begin + int(self.emitted[slot]))
