"""Observers: every record, in step order, outside the decode path; a raising one is disabled."""

import asyncio

import pytest

from adaverify_runtime.observers import ObserverQueue
from adaverify_runtime.plugins import Observer


def test_records_wait_for_the_drain_and_keep_their_order(make):
    """Nothing is called before the drain."""
    seen = []
    queue = ObserverQueue((Observer("watch", seen.append),), capacity=10)
    for step in range(3):
        queue.put(make.record(step))
    assert seen == []
    assert queue.drain() == 3
    assert [record.step for record in seen] == [0, 1, 2]
    assert queue.drain() == 0


def test_a_full_queue_drains_itself_and_drops_nothing(make):
    """Bounded memory without a lost record."""
    seen = []
    queue = ObserverQueue((Observer("watch", seen.append),), capacity=4)
    for step in range(11):
        queue.put(make.record(step))
        assert len(queue) < 4
    queue.drain()
    assert [record.step for record in seen] == list(range(11))


def test_an_observer_that_raises_is_disabled_counted_and_reported(make, caplog):
    """The healthy observer sees everything; the engine sees no exception."""
    seen, calls = [], []

    def broken(record):
        calls.append(record.step)
        raise ValueError("disk full")

    queue = ObserverQueue((Observer("broken", broken), Observer("watch", seen.append)), capacity=1)
    for step in range(3):
        queue.put(make.record(step))
    assert calls == [0]
    assert [record.step for record in seen] == [0, 1, 2]
    assert dict(queue.counters) == {"observer-disabled:broken": 1}
    assert [(item.plugin, item.step, item.error) for item in queue.disabled] == [
        ("broken", 0, "ValueError: disk full")
    ]
    assert "broken" in caplog.text


def test_without_observers_nothing_is_kept(make):
    """No observer, no memory."""
    queue = ObserverQueue((), capacity=4)
    queue.put(make.record())
    assert len(queue) == 0


class Mute(BaseException):
    def __str__(self):
        raise ValueError("no words")


@pytest.mark.parametrize(
    "error", [Mute(), asyncio.CancelledError(), GeneratorExit()], ids=lambda e: type(e).__name__
)
def test_whatever_an_observer_raises_disables_it(make, error):
    """No exception of a stranger reaches the engine, one without usable words neither."""

    def broken(record):
        raise error

    queue = ObserverQueue((Observer("broken", broken),), capacity=1)
    queue.put(make.record(0))
    (disabled,) = queue.disabled
    assert disabled.error.startswith(type(error).__name__)


def test_an_interrupt_reaches_the_user(make):
    def interrupted(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ObserverQueue((Observer("slow", interrupted),), capacity=1).put(make.record(0))
