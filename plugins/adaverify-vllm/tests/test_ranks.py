"""Ranks come to one budget: rank 0's, or by digests."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from torch.distributed import HashStore

from adaverify_vllm.meeting import absent, meeting_name
from adaverify_vllm.ranks import Alone


class Room:
    """Where the ranks of one test meet; each runs in a thread of its own."""

    def __init__(self, size):
        self.size, self.values = size, {}
        self.barrier = threading.Barrier(size)


class Seat:
    """One rank's place: the protocol over threads."""

    def __init__(self, room, rank):
        self.room, self.rank, self.size, self.leads = room, rank, room.size, rank == 0

    def absent(self):
        return []

    def from_leader(self, value):
        if self.leads:
            self.room.values["leader"] = value
        self.room.barrier.wait(20)
        found = self.room.values["leader"]
        self.room.barrier.wait(20)
        return found

    def gather(self, value):
        self.room.values[self.rank] = value
        self.room.barrier.wait(20)
        found = [self.room.values[rank] for rank in range(self.size)]
        self.room.barrier.wait(20)
        return found


def together(size, act):
    """Run act(seat) for each rank and return the results in rank order."""
    room = Room(size)
    found = [None] * size
    errors = []

    def one(rank):
        try:
            found[rank] = act(Seat(room, rank))
        except BaseException as error:  # noqa: BLE001 - raised again below, by the test's own thread
            errors.append(error)
            room.barrier.abort()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    return found


def serve(drive, seat, agreement, wobble):
    """Drain a batch of 12 requests to 1, confidences differing between ranks; return the totals."""
    made = drive(ranks=seat, agreement=agreement)
    made.price(lambda tokens: 4.0 + 0.2 * tokens * (1 + 0.01 * seat.rank))
    names = [f"r{i}" for i in range(12)]
    made.add(*names)
    totals = []
    rng = np.random.default_rng(3)
    for step in range(12):
        running = names[: 12 - step]
        drawn = {name: rng.uniform(0.3, 0.95, 7) for name in names}
        for name in running:
            drawn[name] = np.clip(drawn[name] - wobble * seat.rank, 0, 1)
        total, _, boundaries = made.step(dict.fromkeys(running, 7))
        assert boundaries[len(running)] == total
        totals.append(total)
        made.record({name: drawn[name] for name in running})
    return totals, dict(made.manager.counters)


@pytest.mark.parametrize("size", [2, 4])
def test_rank_0_decides_for_all_while_a_batch_drains(drive, size):
    """Confidences 1e-3 apart, down to one request: equal totals in every step (vLLM #54011)."""
    found = together(size, lambda seat: serve(drive, seat, "rank0", 1e-3))
    totals = [totals for totals, _ in found]
    assert all(one == totals[0] for one in totals)
    assert min(totals[0]) < 8
    assert any(total < 8 * (12 - step) for step, total in enumerate(totals[0]))


def test_digests_that_differ_verify_everything_on_every_rank(drive):
    """The step is counted on each of them, and nothing hangs."""
    found = together(2, lambda seat: serve(drive, seat, "digest", 0.2))
    (first, counted), (second, also) = found
    assert first == second
    assert counted["ranks-disagree"] == also["ranks-disagree"] > 0


def test_digests_that_agree_trim(drive):
    """Equal histories mean equal plans."""
    found = together(2, lambda seat: serve(drive, seat, "digest", 0.0))
    (first, counted), (second, _) = found
    assert first == second
    assert "ranks-disagree" not in counted
    assert any(total < 8 * (12 - step) for step, total in enumerate(first))


def test_a_rank_alone_exchanges_nothing():
    alone = Alone()
    assert (alone.from_leader(3), alone.gather(4), alone.size, alone.leads) == (3, [4], 1, True)
    assert alone.absent() == []


@pytest.mark.parametrize(
    ("came", "missing"),
    [((4, 5, 6), []), ((4, 6), [5]), ((4,), [5, 6]), ((5, 6), [4])],
)
def test_ranks_hear_who_has_no_bridge_and_nobody_hangs(came, missing):
    """A node without the bridge never comes: all others learn the same and go on without it."""
    store = HashStore()
    found = {}

    def one(rank):
        found[rank] = absent(store, "meeting", (4, 5, 6), rank, 1.0 if missing else 20.0)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in came]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == dict.fromkeys(came, missing)


def test_meetings_have_names_of_their_own():
    """Two groups on one store, and two engines of one process, do not take each other's word."""
    names = [meeting_name("tp:0", (0, 1)), meeting_name("tp:0", (2, 3)), meeting_name("tp:0", (0, 1))]
    assert len(set(names)) == 3
