"""Confidences to the host while the device is busy, beside a copy and a blocking event."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import torch

from adaverify.bench.rows import OURS, sample_rows, time_columns
from adaverify.bench.timing import LOADED_QUEUE_US
from adaverify_contracts import (
    BenchmarkCell,
    BenchmarkColumn,
    BenchmarkOptions,
    BenchmarkResult,
    Limits,
    WrongValueError,
)
from adaverify_verification import Relay, make_relay

K = 7
IN_A_GRAPH = "in a graph"
REQUESTS = (16, 256)
_REMEDY = "do not trust this relay here; no time was taken"


def run(options: BenchmarkOptions) -> BenchmarkResult:
    """Check what arrives and that nothing waits, then time publish and latest behind a full queue."""
    sizes = options.requests or REQUESTS
    for done, requests in enumerate(sizes):
        options.progress(done, 2 * len(sizes), f"checking {requests} requests")
        check(options, requests)
    rows: list[tuple[BenchmarkCell, ...]] = []
    dropped: dict[str, dict[str, int]] = {}
    for done, requests in enumerate(sizes):
        options.progress(len(sizes) + done, 2 * len(sizes), f"publishing {requests} requests")
        relay, captured_relay = (make_relay(Limits(requests, K, 8192, 64), options.device) for _ in range(2))
        confidences = torch.rand(requests, K, device=options.device)
        works = {
            OURS: publish_and_latest(relay, confidences),
            IN_A_GRAPH: begin_launched_latest(captured_relay, requests),
            "blocking event": blocking_copy(confidences),
        }
        loaded = options.timer.under_load(works)
        idle = options.timer.time(works, captured=False)
        samples = {name: {"loaded": loaded[name], "host": idle[name].host} for name in works}
        rows += sample_rows((requests,), samples, "loaded", "host")
        dropped[str(requests)] = {OURS: relay.dropped, IN_A_GRAPH: captured_relay.dropped}
        relay.close()
        captured_relay.close()
    queued = options.capability.device_type != "cpu"
    return BenchmarkResult(
        columns=(BenchmarkColumn("requests"), *time_columns("loaded", "host")),
        rows=tuple(rows),
        checks=(
            (
                "what arrives is what was published, also when the tensor is overwritten afterwards, and "
                "nothing newer than asked for is read"
            ),
            "in a graph: what arrives is what the tensor held at each replay, in the entry that was begun",
            "publish and latest return while the device is still busy, with synchronising calls an error"
            if queued
            else "a CPU has no queue to wait for",
        ),
        data=f"K {K}, confidences uniform in 0..1",
        cache="warm: every call publishes the same tensor",
        notes=(
            f"loaded: {LOADED_QUEUE_US:.0f} us of device work stand in the queue before each call"
            if queued
            else "loaded equals idle: a CPU has no queue",
            (
                "in a graph: begin, launched and latest, the host's work when a replay sends; the replay is "
                "the step's and not counted, nor is the entry's index, which goes with the step's command"
            ),
        ),
        facts={"dropped": dropped},
    )


def publish_and_latest(relay: Relay, confidences: torch.Tensor) -> Callable[[], object]:
    """Return one step of a relay: publish, then read whatever has arrived of the step before."""
    requests = len(confidences)
    slots, generations = np.arange(requests), np.zeros(requests, dtype=np.int64)
    steps = itertools.count()

    def step() -> object:
        number = next(steps)
        relay.publish(number, slots, generations, confidences)
        return relay.latest(at_most=number - 1)

    return step


def begin_launched_latest(
    relay: Relay, requests: int, replay: Callable[[int], object] | None = None
) -> Callable[[], object]:
    """Return the host's work of one step whose replay sends: begin, launched, read what has arrived.

    Args:
        relay: the relay.
        requests: rows that are published.
        replay: called with the entry's index between begin and launched; nothing is sent when None.
    """
    slots, generations = np.arange(requests), np.zeros(requests, dtype=np.int64)
    steps = itertools.count()

    def step() -> object:
        number = next(steps)
        index = relay.begin(number, slots, generations)
        if replay is not None:
            replay(relay.bin if index is None else index)
        if index is not None:
            relay.launched(index)
        return relay.latest(at_most=number - 1)

    return step


def captured_send(
    options: BenchmarkOptions, relay: Relay, confidences: torch.Tensor
) -> Callable[[int], object]:
    """Return a replay of ``relay.send`` that stores ``confidences`` in the entry it is called with."""
    entry = torch.full((1,), relay.bin, dtype=torch.int32, device=options.device)
    send = options.timer.captured(lambda: relay.send(confidences, entry))

    def replay(index: int) -> None:
        entry.fill_(index)
        send()

    return replay


def blocking_copy(confidences: torch.Tensor) -> Callable[[], np.ndarray]:
    """Return the obvious way: copy to pinned memory, record an event, wait for it."""
    device = confidences.device
    queued = device.type == "cuda"
    host = torch.empty(confidences.shape, dtype=confidences.dtype, pin_memory=queued)
    event = torch.cuda.Event() if queued else None  # type: ignore[no-untyped-call]

    def step() -> np.ndarray:
        host.copy_(confidences, non_blocking=queued)
        if event is not None:
            event.record(torch.cuda.current_stream(device))
            event.synchronize()
        return host.numpy().copy()

    return step


def check(options: BenchmarkOptions, requests: int) -> None:
    """Require the published values, the right step, and no wait.

    Raises:
        WrongValueError: the relay or the baseline hands out something else, or the relay waited.
    """
    relay = make_relay(Limits(requests, K, 8192, 64), options.device)
    slots, generations = np.arange(requests), np.full(requests, 3, dtype=np.int64)
    published = [
        torch.rand(requests, K, generator=torch.Generator().manual_seed(step)).to(options.device)
        for step in range(2)
    ]
    for step, confidences in enumerate(published):
        live = confidences.clone()
        relay.publish(step, slots, generations, live)
        live.fill_(-1.0)
    _require_arrived(options, relay, published, "published")
    sender = make_relay(Limits(requests, K, 8192, 64), options.device)
    live = torch.empty_like(published[0])
    replay = captured_send(options, sender, live)
    for step, confidences in enumerate(published):
        live.copy_(confidences)
        index = sender.begin(step, slots, generations)
        replay(sender.bin if index is None else index)
        if index is not None:
            sender.launched(index)
        live.fill_(-1.0)
    _require_arrived(options, sender, published, "sent by a graph")
    if not np.array_equal(blocking_copy(published[0])(), published[0].cpu().numpy()):
        raise WrongValueError("the blocking copy hands out something else", remedy=_REMEDY)
    if options.capability.device_type != "cpu":
        _require_no_wait(options, publish_and_latest(relay, published[0]))
        _require_no_wait(options, begin_launched_latest(sender, requests, replay))
    relay.close()
    sender.close()


def _require_arrived(
    options: BenchmarkOptions, relay: Relay, published: list[torch.Tensor], how: str
) -> None:
    options.timer.synchronize()
    for at_most, step in ((None, 1), (0, 0)):
        found = relay.latest(at_most)
        expected = published[step].cpu().numpy()
        if found is None or found.step != step or not np.array_equal(found.confidences, expected):
            raise WrongValueError(
                f"the relay's snapshot of {len(expected)} requests is not what was {how}",
                arrived=None if found is None else found.step,
                allowed=f"step {step}, its confidences unchanged",
                remedy=_REMEDY,
            )


def _require_no_wait(options: BenchmarkOptions, step: Callable[[], object]) -> None:
    with torch.cuda.device(options.device):
        step()
        torch.cuda.synchronize()
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda._sleep(int(4000 * LOADED_QUEUE_US))  # type: ignore[no-untyped-call]
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
        except RuntimeError as error:
            raise WrongValueError(
                "the relay made a synchronising call", arrived=str(error), allowed="none", remedy=_REMEDY
            ) from error
        finally:
            torch.cuda.set_sync_debug_mode(mode)
        if torch.cuda.current_stream().query():
            raise WrongValueError(
                "the relay waited: the queue in front of it has run dry",
                allowed="a return while the device is busy",
                remedy=_REMEDY,
            )
        torch.cuda.synchronize()
