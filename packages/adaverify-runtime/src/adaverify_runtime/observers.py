"""Observers of finished steps, called from a bounded queue outside the decode path."""

from __future__ import annotations

import logging
from collections import Counter, deque
from dataclasses import dataclass

from adaverify_contracts import StepRecord
from adaverify_contracts.describing import describe
from adaverify_runtime.plugins import Observer

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DisabledObserver:
    """An observer that raised, with the step and the error in words."""

    plugin: str
    step: int
    error: str


class ObserverQueue:
    """Keeps records until ``drain`` and hands each to every observer, in step order.

    ``put`` drains when ``capacity`` records wait, so nothing is ever dropped and memory stays bounded. An
    observer that raises is disabled for the rest of the run, counted and logged once.

    Args:
        observers: plain callables; nothing is queued when there are none.
        capacity: records kept at most, at least 1.
    """

    def __init__(self, observers: tuple[Observer, ...], capacity: int) -> None:
        self._observers = list(observers)
        self._records: deque[StepRecord] = deque()
        self._capacity = max(1, capacity)
        self.disabled: list[DisabledObserver] = []
        self.counters: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._records)

    @property
    def listening(self) -> bool:
        """Whether anybody gets the records."""
        return bool(self._observers)

    def add(self, observer: Observer) -> None:
        """Hand records queued from now on to ``observer`` too."""
        self.drain()
        self._observers.append(observer)

    def put(self, record: StepRecord) -> None:
        """Queue ``record``; drain first of all when the queue is full."""
        if not self._observers:
            return
        self._records.append(record)
        if len(self._records) >= self._capacity:
            self.drain()

    def drain(self) -> int:
        """Call the observers with everything queued; return how many records were handed out."""
        handed = 0
        while self._records:
            record = self._records.popleft()
            handed += 1
            for observer in tuple(self._observers):
                try:
                    observer.call(record)
                except KeyboardInterrupt:
                    raise
                except BaseException as error:  # noqa: BLE001 - an observer never reaches the engine
                    self._disable(observer, record.step, error)
        return handed

    def _disable(self, observer: Observer, step: int, error: BaseException) -> None:
        self._observers.remove(observer)
        words = describe(error)
        self.disabled.append(DisabledObserver(observer.plugin, step, words))
        self.counters[f"observer-disabled:{observer.plugin}"] += 1
        _log.warning(
            "observer of plugin %s raised at step %d and is disabled: %s", observer.plugin, step, words
        )
