"""How benchmarks time: turns, quartiles, launches that were counted, and what surrounded them."""

from __future__ import annotations

import pytest

from adaverify.bench import step, surroundings
from adaverify.bench.launches import require_launches
from adaverify.bench.timing import DeviceTimer, sample
from adaverify_contracts import (
    WrongValueError,
)


@pytest.mark.parametrize(
    "counts",
    [
        {"cudaGraphLaunch": 99},
        {"cudaGraphLaunch": 200},
        {"cudaGraphLaunch": 100, "cudaStreamSynchronize": 1},
        {"cudaGraphLaunch": 100, "cudaMemcpy": 1},
        {},
    ],
)
def test_steps_that_wait_or_are_no_single_launch_are_refused(counts):
    with pytest.raises(WrongValueError):
        require_launches(counts, 100, 100)


def test_steps_of_one_launch_pass():
    require_launches({"cudaGraphLaunch": 100, "cudaEventSynchronize": 100, "cudaMemcpyAsync": 200}, 100, 100)
    with pytest.raises(WrongValueError):
        require_launches({"cudaGraphLaunch": 60}, 60, 100)


def test_host_work_of_late_steps_is_not_hidden():
    """The share counts host time of the steps whose results lay there already."""
    steps = step.Steps()
    phases = dict.fromkeys(("draft", "plan", "forward", "accept", "observe"), 0.0)
    steps.add(50.0, phases | {"plan": 30e-6, "forward": 20e-6})
    steps.add(11.0, phases | {"plan": 10e-6, "forward": 1e-6})
    assert steps.unhidden == pytest.approx(0.25)
    assert step.Steps().unhidden == 0.0
    reading = step.Steps(read_us=15.0)
    reading.add(50.0, phases | {"plan": 30e-6, "forward": 20e-6})
    assert (reading.host[0], reading.waits[0], reading.unhidden) == pytest.approx((45.0, 5.0, 1.0))


def test_the_timer_takes_turns_and_gives_quartiles():
    """Every variant runs in every round, in an order that rotates; on a CPU there is no device time."""
    calls = []
    timer = DeviceTimer("cpu", rounds=3, calls=1)
    times = timer.time({name: lambda name=name: calls.append(name) for name in "ab"})
    assert calls == [*"aaa", *"bbb", *"ab", *"ba", *"ab"]
    assert times["a"].host.low <= times["a"].host.median <= times["a"].host.high
    assert times["a"].gpu is None and times["a"].graph_gpu is None
    assert set(timer.under_load({"a": list})) == {"a"}
    assert sample([3.0, 1.0, 2.0]).median == 2.0
    assert sample([3.0]).high == 3.0


def test_what_is_done_before_a_call_is_done_before_each_and_not_timed(monkeypatch):
    """A clock that moves with the calls: the variant takes its second, whatever stands before it takes."""
    now, calls = [0.0], []

    def work(name, seconds):
        calls.append(name)
        now[0] += seconds

    monkeypatch.setattr("adaverify.bench.timing.perf_counter", lambda: now[0])
    variants = {"a": lambda: work("a", 1.0), "b": lambda: work("b", 2.0)}
    timer = DeviceTimer("cpu", rounds=1, calls=2)
    times = timer.time(variants, captured=False, before={"b": lambda: work("first", 5.0)})
    assert calls == [*"aaa", *["first", "b"] * 3, *"aa", *["first", "b"] * 2]
    assert (times["a"].host.median, times["b"].host.median) == (1e6, 2e6)


def test_surroundings_do_without_tools(monkeypatch):
    """No nvidia-smi, no git: the fields are null, and nothing fails."""
    monkeypatch.setattr(surroundings.shutil, "which", lambda name: None)
    assert surroundings.clocks("cuda") is None
    assert surroundings.commit() is None
    assert surroundings._output(["no-such-command-anywhere"]) is None
