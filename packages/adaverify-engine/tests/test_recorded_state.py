"""Records on the device: what does not fit is refused, and a reset stands everybody where it was told."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adaverify_contracts import LayoutError, Limits
from adaverify_engine.recorded import RecordedState

LIMITS = Limits(3, 2, 64, 4)
SCORES, ACCEPTED = np.zeros((10, 2), dtype=np.float16), np.ones(10, dtype=np.uint8)


@pytest.fixture
def state():
    return RecordedState(LIMITS, torch.device("cpu"), SCORES, ACCEPTED, 40)


def ints(*values):
    return np.array(values, dtype=np.int64)


def test_a_reset_stands_requests_at_their_cursors_and_the_start_context(state):
    state.slots.kv_len.fill_(63)
    state.reset(ints(4, 9), ints(0, 5), ints(5, 10))
    assert state.slots.cursor[:2].tolist() == [4, 9]
    assert state.slots.begin[:2].tolist() == [0, 5]
    assert state.slots.end[:2].tolist() == [5, 10]
    assert state.slots.kv_len.tolist() == [40, 40, 40]
    assert state.bound == 63


@pytest.mark.parametrize(
    ("cursor", "begin", "end"),
    [(5, 0, 5), (2, 3, 9), (3, 3, 5)],
    ids=["behind its end", "before its begin", "shorter than a step"],
)
def test_a_request_outside_its_sequence_is_refused(state, cursor, begin, end):
    with pytest.raises(LayoutError, match="outside its sequence"):
        state.reset(ints(cursor), ints(begin), ints(end))


@pytest.mark.parametrize(
    ("scores", "accepted", "context"),
    [(SCORES[:, :1], ACCEPTED, 40), (SCORES[:9], ACCEPTED, 40), (SCORES, ACCEPTED, 64)],
    ids=["another K", "fewer scores", "no room"],
)
def test_records_that_do_not_fit_are_refused(scores, accepted, context):
    with pytest.raises(LayoutError, match="records do not fit"):
        RecordedState(LIMITS, torch.device("cpu"), scores, accepted, context)


def test_control_and_prefixes_are_what_a_step_schedules(state):
    state.control(2)
    assert state.slots.control.tolist() == [2, 0]
    state.control(2, forced=True)
    state.force(ints(1, 0))
    assert state.slots.control.tolist() == [2, 1]
    assert state.slots.prefix.tolist() == [1, 0, 0]
