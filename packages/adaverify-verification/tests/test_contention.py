"""Waiting for a processor: read from the system, and what it makes of a table."""

import os
import subprocess
import sys
from time import perf_counter

import pytest

from adaverify_verification import ContentionWatch, CostTable, Fingerprint, ProfileGrid, profile_cost
from adaverify_verification.contention import thread_waits, waited_share
from adaverify_verification.disturbance import RETRIES

HERE = Fingerprint.from_mapping({"device": "cpu"})
GRID = ProfileGrid((4,), (128,), (4, 8, 16, 32), draft_tokens=7, warmup=0, repeats=3)


class Neighbour:
    """A clock that each step moves, and threads that wait a ``share`` of it."""

    def __init__(self, share):
        self.share = share
        self.now = 0.0
        self.waited = 0.0
        self.runs = {}

    def __call__(self, tokens, requests, context):
        number = self.runs[tokens] = self.runs.get(tokens, -1) + 1
        share = self.share(tokens, number)
        seconds = (0.01 + 0.001 * tokens) / (1 - share)
        self.now += seconds
        self.waited += share * seconds
        return seconds

    @property
    def watch(self):
        return ContentionWatch(lambda: {1: self.waited, 2: 0.0}, lambda: self.now)


def test_a_steady_neighbour_makes_a_table_disturbed_though_all_rounds_agree(tmp_path):
    """Bounded passes, then every point is named; the file says so too."""
    machine = Neighbour(lambda tokens, number: 0.9)
    table = profile_cost(machine, GRID, HERE, watch=machine.watch)
    assert set(machine.runs.values()) == {3 * (1 + RETRIES) - 1}
    assert len(table.disturbed) == 4
    assert table.disturbed[0] == (
        "4 tokens, 4 requests, context 128: 90% of the time that counts was spent waiting for a processor "
        "that something else held, 10% allowed"
    )
    table.save(tmp_path / "t.json")
    assert CostTable.load(tmp_path / "t.json", HERE).disturbed == table.disturbed


def test_the_same_rounds_without_waiting_are_a_table():
    """A machine that is that slow and idle otherwise is only slow."""
    machine = Neighbour(lambda tokens, number: 0.9)
    table = profile_cost(machine, GRID, HERE, watch=ContentionWatch(dict, lambda: machine.now))
    assert table.disturbed == ()


def test_a_neighbour_that_leaves_is_outlived_by_the_further_passes():
    """Measured again until the faster half of the rounds did not wait."""
    machine = Neighbour(lambda tokens, number: 0.5 if number < 3 else 0.0)
    table = profile_cost(machine, GRID, HERE, watch=machine.watch)
    assert table.disturbed == ()
    assert table.points[0][3] == pytest.approx(0.014)


def test_a_little_waiting_is_no_disturbance():
    """Timer ticks and a console thread cost a little on a quiet machine too."""
    machine = Neighbour(lambda tokens, number: 0.05)
    assert profile_cost(machine, GRID, HERE, watch=machine.watch).disturbed == ()
    assert set(machine.runs.values()) == {2}


def test_the_most_delayed_thread_counts_and_new_ones_count_from_their_start():
    """A step ends with its latest thread; a thread that started meanwhile has no earlier reading."""
    readings = iter([{1: 5.0, 2: 1.0}, {1: 5.5, 2: 1.2, 3: 9.0}])
    clock = iter([10.0, 12.0])
    assert ContentionWatch(lambda: next(readings), lambda: next(clock)).around(lambda: 7.0) == (7.0, 0.25)


def test_only_the_rounds_that_count_count():
    """The faster half; where nothing is known, nothing is held against the table."""
    assert waited_share([1.0, 2.0, 3.0], [0.0, 0.5, 0.9]) == 0.25
    assert waited_share([1.0, 2.0], []) == 0.0


@pytest.mark.skipif(not thread_waits() or not hasattr(os, "sched_setaffinity"), reason="no schedstat here")
def test_a_real_neighbour_on_the_same_processor_is_seen():
    """Two programs on one processor: each waits while the other runs."""
    allowed = os.sched_getaffinity(0)
    one = {min(allowed)}
    spin = f"import os; os.sched_setaffinity(0, {one}); print(flush=True)\nwhile True: pass"
    neighbour = subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE)
    try:
        neighbour.stdout.readline()
        os.sched_setaffinity(0, one)

        def step():
            end = perf_counter() + 0.3
            while perf_counter() < end:
                pass
            return 0.3

        _, share = ContentionWatch().around(step)
    finally:
        os.sched_setaffinity(0, allowed)
        neighbour.kill()
        neighbour.communicate()
    assert share > 0.15
