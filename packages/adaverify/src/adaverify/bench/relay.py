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
REQUESTS = (16, 256)
_REMEDY = "do not trust this relay here; no time was taken"


def run(options: BenchmarkOptions) -> BenchmarkResult:
    """Check what arrives and that nothing waits, then time publish and latest behind a full queue."""
    sizes = options.requests or REQUESTS
    for done, requests in enumerate(sizes):
        options.progress(done, 2 * len(sizes), f"checking {requests} requests")
        check(options, requests)
    rows: list[tuple[BenchmarkCell, ...]] = []
    dropped = {}
    for done, requests in enumerate(sizes):
        options.progress(len(sizes) + done, 2 * len(sizes), f"publishing {requests} requests")
        relay = make_relay(Limits(requests, K, 8192, 64), options.device)
        confidences = torch.rand(requests, K, device=options.device)
        works = {
            OURS: publish_and_latest(relay, confidences),
            "blocking event": blocking_copy(confidences),
        }
        loaded = options.timer.under_load(works)
        idle = options.timer.time(works, captured=False)
        samples = {name: {"loaded": loaded[name], "host": idle[name].host} for name in works}
        rows += sample_rows((requests,), samples, "loaded", "host")
        dropped[str(requests)] = relay.dropped
        relay.close()
    queued = options.capability.device_type != "cpu"
    return BenchmarkResult(
        columns=(BenchmarkColumn("requests"), *time_columns("loaded", "host")),
        rows=tuple(rows),
        checks=(
            (
                "what arrives is what was published, also when the tensor is overwritten afterwards, and "
                "nothing newer than asked for is read"
            ),
            "publish and latest return while the device is still busy, with synchronising calls an error"
            if queued
            else "a CPU has no queue to wait for",
        ),
        data=f"K {K}, confidences uniform in 0..1",
        cache="warm: every call publishes the same tensor",
        notes=(f"loaded: {LOADED_QUEUE_US:.0f} us of device work stand in the queue before each call",)
        if queued
        else ("loaded equals idle: a CPU has no queue",),
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
    options.timer.synchronize()
    for at_most, step in ((None, 1), (0, 0)):
        found = relay.latest(at_most)
        expected = published[step].cpu().numpy()
        if found is None or found.step != step or not np.array_equal(found.confidences, expected):
            raise WrongValueError(
                f"the relay's snapshot of {requests} requests is not what was published",
                arrived=None if found is None else found.step,
                allowed=f"step {step}, its confidences unchanged",
                remedy=_REMEDY,
            )
    if not np.array_equal(blocking_copy(published[0])(), published[0].cpu().numpy()):
        raise WrongValueError("the blocking copy hands out something else", remedy=_REMEDY)
    if options.capability.device_type != "cpu":
        _require_no_wait(options, publish_and_latest(relay, published[0]))
    relay.close()


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
