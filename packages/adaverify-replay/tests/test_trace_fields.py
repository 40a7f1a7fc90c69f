"""What a trace's records may hold, and which step may follow which."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from adaverify_contracts import PlanState, TraceError
from adaverify_replay import TraceHeader, TraceWriter, read_trace

COUNTS = (
    "step",
    "requests",
    "certain_tokens",
    "scheduled",
    "planned",
    "verified",
    "accepted",
    "emitted",
    "tokens",
    "tier",
    "realised_tokens",
    "lag",
)


@pytest.fixture
def write(tmp_path, record):
    """Return a function that writes records, given as changes of a good one, and returns the path."""

    def written(*changes):
        path = tmp_path / "trace.jsonl"
        lines = [TraceHeader().as_dict(), *({**record().as_dict(), **change} for change in changes)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return path

    return written


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [-1, 10**30])
def test_a_count_out_of_range_is_refused_as_that(write, name, value):
    """A negative total would be reported as one, and 10**30 is an int: its type is not what is wrong."""
    path = write({"step": 0}, {"step": 1, name: value})
    with pytest.raises(TraceError, match=f"{name} is out of range") as caught:
        read_trace(path)
    assert (caught.value.line, caught.value.arrived) == (3, value)
    assert caught.value.allowed == "0 .. 2**63 - 1"


def test_an_unknown_state_is_refused_with_those_there_are(write):
    with pytest.raises(TraceError, match="state is none that a plan has") as caught:
        read_trace(write({}, {"step": 1, "state": "dreaming"}))
    assert caught.value.line == 3
    assert caught.value.allowed.split(", ") == [state.value for state in PlanState]


@pytest.mark.parametrize("steps", [(0, 1, 1), (4, 5, 5, 6), (3, 3)])
def test_a_step_that_is_recorded_twice_is_refused(write, steps):
    """The totals of a report would count it twice."""
    with pytest.raises(TraceError, match="repeats the step of the line before") as caught:
        read_trace(write(*({"step": step} for step in steps)))
    assert caught.value.arrived == next(one for one, other in pairwise(steps) if one == other)


@pytest.mark.parametrize("steps", [(0, 1, 2, 0, 1, 2), (5, 5), (3, 4, 3, 3, 4)])
def test_runs_that_were_appended_are_read(write, steps):
    """`adaverify run --trace` appends: the next run's numbers begin again."""
    path = write(*({"step": step, "realised_seconds": 0.01 * n} for n, step in enumerate(steps)))
    assert [record.step for record in read_trace(path)] == list(steps)


def test_a_second_outcome_of_a_step_is_read_as_the_fallback_that_it_is(tmp_path, record):
    """The manager counts it and returns a record, which the writer takes."""
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path) as writer:
        for step, fallbacks in ((0, ()), (1, ()), (1, ("outcome-of-another-step",))):
            writer.write(record(step=step, fallbacks=fallbacks))
    assert len(read_trace(path)) == 3
