"""Captured graphs by key: capture what fits, find the smallest that serves a batch, replay it."""

from __future__ import annotations

import bisect
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from adaverify_contracts import (
    CapturedGraph,
    CaptureError,
    GraphBackend,
    GraphError,
    GraphKey,
    GraphSupport,
    Limits,
    StaleBufferError,
)
from adaverify_contracts.describing import kind_of, text_of
from adaverify_graphs._arguments import require_cache_parts, require_limits, require_most
from adaverify_graphs._misses import miss_reason
from adaverify_graphs.buffers import BufferSet
from adaverify_graphs.report import CaptureFailure, CaptureReport
from adaverify_graphs.shapes import check_key

MakeRun = Callable[[GraphKey], Callable[[], Any]]
"""Given a key, return the step to capture at that size; it may run several times before the capture."""

Progress = Callable[[int, int, GraphKey], None]
"""Called before each capture as ``progress(done, total, key)``."""


@dataclass(slots=True)
class _Entry:
    graph: CapturedGraph
    epoch: int
    generations: dict[str, int]


class _SizeFailed(Exception):
    """Carries stage and cause of one size out of the steps that capture it."""

    def __init__(self, stage: str, cause: str) -> None:
        super().__init__(cause)
        self.stage = stage
        self.cause = cause


class GraphCache:
    """Graphs of one deployment over one backend.

    Args:
        backend: captures and replays.
        limits: what the static buffers were made for; keys beyond it are refused.
        buffers: the static buffers the captured steps read, an empty set by default.
        mode: what is served from graphs (``resolve_mode``). ``NEVER`` captures and matches nothing,
            ``UNIFORM_BATCH`` matches uniform batches only. It is never changed here.
        bytes_limit: largest number of bytes all captures may hold, None for no limit.

    Raises:
        GraphError: an argument has the wrong type.
    """

    def __init__(
        self,
        backend: GraphBackend,
        limits: Limits,
        *,
        buffers: BufferSet | None = None,
        mode: GraphSupport = GraphSupport.VARLEN_DECODE,
        bytes_limit: int | None = None,
    ) -> None:
        require_cache_parts(backend, mode)
        require_limits(limits)
        require_most("bytes_limit", bytes_limit)
        self.buffers = BufferSet() if buffers is None else buffers
        self.mode = mode
        self._backend = backend
        self._limits = limits
        self._bytes_limit = bytes_limit
        self._entries: dict[GraphKey, _Entry] = {}
        self._order: list[GraphKey] = []
        self._failed: dict[GraphKey, CaptureFailure] = {}
        self._counters: Counter[str] = Counter()

    @property
    def keys(self) -> tuple[GraphKey, ...]:
        """Captured keys, smallest first, stale ones included."""
        return tuple(self._order)

    @property
    def failed(self) -> Mapping[GraphKey, CaptureFailure]:
        """Sizes without a graph, with their causes."""
        return MappingProxyType(self._failed)

    @property
    def counters(self) -> Mapping[str, int]:
        """Matches, replays, and misses by reason (``missed: prefill`` and so on)."""
        return MappingProxyType(self._counters)

    def capture_all(
        self, keys: Iterable[GraphKey], make_run: MakeRun, *, progress: Progress | None = None
    ) -> CaptureReport:
        """Capture every key, largest first; a size that fails is reported by name and the rest go on.

        Each size is estimated before it is captured and left out when the limit would be passed. In mode
        ``NEVER`` nothing runs and the report is empty.

        Raises:
            GraphError: a key does not fit the limits. Nothing was captured then.
        """
        wanted = sorted(set(keys), reverse=True)
        for key in wanted:
            check_key(key, self._limits)
        if self.mode is GraphSupport.NEVER:
            wanted = []
        started = time.monotonic()
        captured: list[GraphKey] = []
        failed: list[CaptureFailure] = []
        estimates: list[tuple[GraphKey, int]] = []
        for done, key in enumerate(wanted):
            if progress is not None:
                progress(done, len(wanted), key)
            self._forget(key)
            try:
                self._capture(key, make_run, estimates)
                captured.append(key)
            except _SizeFailed as failure:
                failed.append(CaptureFailure(key, failure.stage, failure.cause))
        self._failed.update((failure.key, failure) for failure in failed)
        self._counters["captured"] += len(captured)
        self._counters["capture failed"] += len(failed)
        return CaptureReport(
            captured=tuple(captured),
            failed=tuple(failed),
            estimated_bytes=tuple(estimates),
            pool_bytes=self._backend.pool_bytes(),
            bytes_limit=self._bytes_limit,
            seconds=time.monotonic() - started,
        )

    def recapture(self, make_run: MakeRun, *, progress: Progress | None = None) -> CaptureReport:
        """Capture again whatever a moved or resized buffer has invalidated."""
        return self.capture_all(self.stale(), make_run, progress=progress)

    def stale(self) -> tuple[GraphKey, ...]:
        """Return the captured keys whose buffers have moved or been resized since."""
        return tuple(key for key in self._order if self._moved(self._entries[key]))

    def match(
        self, batch: GraphKey | None, *, uniform: bool = False, same_query_len: bool = False
    ) -> GraphKey | None:
        """Return the smallest captured key that serves a batch, or None and count why.

        Args:
            batch: the key of the batch (``batch_key``); None stands for a batch with a prefill chunk.
            uniform: True when host and device agree that all its requests have length ``max_query_len``.
            same_query_len: True when graphs of another ``max_query_len`` do other work than this batch's,
                such as drafting, and must not serve it.

        A larger graph is used when a smaller one failed or is stale. Host only, reads no device value.
        """
        if batch is None:
            self._miss("prefill")
            return None
        if self.mode is GraphSupport.NEVER:
            self._miss("mode is NEVER")
            return None
        only_uniform = self.mode is GraphSupport.UNIFORM_BATCH
        if only_uniform and not uniform:
            self._miss("ragged batch in mode UNIFORM_BATCH")
            return None
        start = bisect.bisect_left(self._order, batch.tokens, key=lambda key: key.tokens)
        stale = False
        for key in self._order[start:]:
            if not key.dominates(batch) or (only_uniform and not _same_lengths(key, batch)):
                continue
            if same_query_len and key.max_query_len != batch.max_query_len:
                continue
            if self._moved(self._entries[key]):
                stale = True
                continue
            self._counters["matched"] += 1
            return key
        kinds: tuple[Iterable[GraphKey], ...] = (self._order, self._failed)
        if same_query_len:
            kinds = tuple([key for key in kind if key.max_query_len == batch.max_query_len] for kind in kinds)
        self._miss("stale buffers" if stale else miss_reason(batch, *map(list, kinds)))
        return None

    def replay(self, key: GraphKey) -> Any:
        """Replay a captured step and return what it returned when it was captured.

        Raises:
            GraphError: nothing is captured under this key.
            StaleBufferError: a buffer has moved or been resized since; ``recapture`` cures it.
        """
        entry = self._entries.get(key)
        if entry is None:
            raise GraphError(
                "no graph is captured under this key",
                arrived=key,
                allowed=f"one of {len(self._order)} captured keys, as returned by match",
                remedy="match first, and run the step eagerly when there is no match",
            )
        moved = self._moved(entry)
        if moved:
            self._counters["refused: stale buffers"] += 1
            raise StaleBufferError(
                f"the graph of {key.tokens} tokens reads buffers where they no longer are",
                arrived=moved,
                allowed="buffers that stay where they were at capture",
                remedy="call recapture, or run the step eagerly",
            )
        self._counters["replayed"] += 1
        return entry.graph.replay()

    def clear(self) -> None:
        """Drop every graph; buffers and counters stay."""
        self._entries.clear()
        self._order.clear()
        self._failed.clear()

    def _forget(self, key: GraphKey) -> None:
        self._failed.pop(key, None)
        if self._entries.pop(key, None) is not None:
            self._order.remove(key)

    def _capture(self, key: GraphKey, make_run: MakeRun, estimates: list[tuple[GraphKey, int]]) -> None:
        run = _guarded("prepare", lambda: make_run(key))
        estimate = _guarded("estimate", lambda: self._backend.estimate(run))
        estimates.append((key, estimate))
        held = self._backend.pool_bytes()
        if self._bytes_limit is not None and held + estimate > self._bytes_limit:
            raise _SizeFailed(
                "limit", f"{held} bytes held and {estimate} estimated pass the limit of {self._bytes_limit}"
            )
        before = self.buffers.generations()
        graph = _guarded("capture", lambda: self._backend.capture(run))
        moved = self.buffers.changed(before)
        if moved:
            raise _SizeFailed("capture", f"buffers moved during the capture: {', '.join(moved)}")
        held = self._backend.pool_bytes()
        if self._bytes_limit is not None and held > self._bytes_limit:
            raise _SizeFailed("limit", f"{held} bytes held after it pass the limit of {self._bytes_limit}")
        # Read again: the step may have added buffers while it was captured.
        self._entries[key] = _Entry(graph, self.buffers.epoch, self.buffers.generations())
        bisect.insort(self._order, key)

    def _moved(self, entry: _Entry) -> tuple[str, ...]:
        if entry.epoch == self.buffers.epoch:
            return ()
        return self.buffers.changed(entry.generations)

    def _miss(self, reason: str) -> None:
        self._counters[f"missed: {reason}"] += 1


def _same_lengths(key: GraphKey, batch: GraphKey) -> bool:
    return key.max_query_len == batch.max_query_len and key.tokens == key.requests * key.max_query_len


def _guarded(stage: str, action: Callable[[], Any]) -> Any:
    """Run one step of a capture; its error becomes the cause that names the size."""
    try:
        return action()
    except CaptureError as error:
        raise _SizeFailed(stage, str(error)) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a model's step raises must not end the start-up
        text = " ".join(text_of(error).split()) or "no message"
        raise _SizeFailed(stage, f"{kind_of(error)}: {text}") from None
