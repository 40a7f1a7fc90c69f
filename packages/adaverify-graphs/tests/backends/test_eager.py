"""The eager backend keeps the step."""

import pytest

from adaverify_contracts import CapturedGraph, CaptureError
from adaverify_graphs import EagerBackend


def test_the_step_runs_once_at_capture_and_once_a_replay():
    calls = []
    backend = EagerBackend()
    graph = backend.capture(lambda: calls.append(len(calls)) or len(calls))
    assert calls == [0]
    assert graph.replay() == 2
    assert graph.replay() == 3
    assert isinstance(graph, CapturedGraph)
    assert (backend.estimate(graph.run), backend.pool_bytes()) == (0, 0)


def test_a_failing_step_is_a_capture_error_with_its_cause():
    def run():
        raise ValueError("no room")

    with pytest.raises(CaptureError, match="ValueError: no room") as caught:
        EagerBackend().capture(run)
    assert isinstance(caught.value.__cause__, ValueError)
