"""How times are taken: events behind a full queue for the device, a monotonic clock for the host."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import torch

from adaverify_contracts import Sample, Times

CALLS = 20
"""Calls of a variant in one round."""

WARM_UP = 3
CYCLES_A_US = 2000
"""Spin cycles a microsecond of queue takes at 2 GHz; a slower clock only makes the queue fuller."""

LEAST_QUEUE_US = 500.0
LOADED_QUEUE_US = 1500.0
"""The step that is in front of a call under load: what a decode step of a small model takes."""

Work = Callable[[], Any]


def sample(values: list[float]) -> Sample:
    """Return the median and quartiles of at least one value."""
    if len(values) == 1:
        return Sample(values[0], values[0], values[0])
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Sample(middle, low, high)


def _nothing() -> None:
    """Do nothing before a call."""


class DeviceTimer:
    """Times variants on one device; see ``adaverify_contracts.Timer``.

    Args:
        device: torch device; a CPU gives host times only.
        rounds: rounds in which the variants take turns.
        calls: calls of each variant in a round.
    """

    def __init__(self, device: str, rounds: int, calls: int = CALLS) -> None:
        self._device = torch.device(device)
        self._rounds = rounds
        self._calls = calls

    @property
    def _has_queue(self) -> bool:
        return self._device.type == "cuda"

    def time(
        self,
        variants: Mapping[str, Work],
        *,
        captured: bool = True,
        before: Mapping[str, Work] | None = None,
    ) -> Mapping[str, Times]:
        """Return host and device times of each variant, launched and, where there are graphs, captured."""
        replays: dict[str, Work] = {}
        first = {name: (before or {}).get(name, _nothing) for name in variants}
        for name, work in variants.items():
            for _ in range(WARM_UP):
                first[name]()
                work()
            if captured and self._has_queue:
                replays[name] = self.captured(work)
                replays[name]()
        found: dict[str, dict[str, list[float]]] = {name: {} for name in variants}
        for names in self._turns(variants):
            for name in names:
                kept = found[name]
                self._round(kept, "host", "gpu", variants[name], first[name])
                if name in replays:
                    self._round(kept, "graph_host", "graph_gpu", replays[name], first[name])
        return {
            name: Times(**{part: sample(values) for part, values in kept.items()})
            for name, kept in found.items()
        }

    def under_load(self, variants: Mapping[str, Work]) -> Mapping[str, Sample]:
        """Return host times of single calls made behind ``LOADED_QUEUE_US`` of device work."""
        found: dict[str, list[float]] = {name: [] for name in variants}
        for work in variants.values():
            for _ in range(WARM_UP):
                work()
        for names in self._turns(variants):
            for name in names:
                for _ in range(self._calls):
                    self.synchronize()
                    self._fill(LOADED_QUEUE_US)
                    begin = perf_counter()
                    variants[name]()
                    found[name].append(1e6 * (perf_counter() - begin))
        self.synchronize()
        return {name: sample(values) for name, values in found.items()}

    def captured(self, work: Work) -> Work:
        """Return a replay of ``work`` that returns what ``work`` returned when it was captured."""
        if not self._has_queue:
            return work
        with torch.cuda.device(self._device):
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    work()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = work()

        def replay() -> Any:
            graph.replay()
            return result

        return replay

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        if self._has_queue:
            torch.cuda.synchronize(self._device)

    def _turns(self, variants: Mapping[str, Work]) -> list[list[str]]:
        names = list(variants)
        shifts = (turn % len(names) for turn in range(self._rounds))
        return [names[shift:] + names[:shift] for shift in shifts]

    def _round(self, kept: dict[str, list[float]], host: str, gpu: str, work: Work, first: Work) -> None:
        hosts = kept.setdefault(host, [])
        for _ in range(self._calls):
            first()
            self.synchronize()
            begin = perf_counter()
            work()
            hosts.append(1e6 * (perf_counter() - begin))
        if self._has_queue:
            # The host must have enqueued the call before the device reaches it, however slow the host is.
            wait = max(LEAST_QUEUE_US, 4.0 * statistics.median(hosts))
            kept.setdefault(gpu, []).extend(self._device_us(work, wait, first) for _ in range(self._calls))

    def _device_us(self, work: Work, queue_us: float, first: Work) -> float:
        first()
        with torch.cuda.device(self._device):
            begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            self._fill(queue_us)
            begin.record()
            work()
            end.record()
            end.synchronize()
            return 1e3 * float(begin.elapsed_time(end))

    def _fill(self, microseconds: float) -> None:
        """Put that much work into the device's queue."""
        if self._has_queue:
            with torch.cuda.device(self._device):
                torch.cuda._sleep(int(CYCLES_A_US * microseconds))  # type: ignore[no-untyped-call]
