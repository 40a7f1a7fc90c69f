"""The plan's own time: it is part of every step's price."""

import time

import numpy as np
import pytest


@pytest.mark.parametrize(("requests", "tiers"), [(256, ()), (256, tuple(range(8, 2049, 8))), (16, ())])
def test_a_plan_takes_less_than_a_millisecond(build, requests, tiers):
    """256 x 7, eager (1793 candidates) and with 256 tiers; best of several, since the machine is shared."""
    table = build.table(lambda n: 0.02 + 0.001 * n, (1, requests), 2048)
    manager = build.manager(table, requests=requests, tiers=tiers, online=True)
    generator = np.random.default_rng(0)
    state = build.state(0, requests)
    manager.publish(0, state.slots, state.generations, build.logits(generator.random((requests, 7))))
    best = float("inf")
    for step in range(60):
        state = build.state(step, requests)
        start = time.perf_counter()
        manager.plan(state)
        best = min(best, time.perf_counter() - start)
    assert best < 1e-3
