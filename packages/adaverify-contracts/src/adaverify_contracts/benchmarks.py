"""Benchmarks that plugins bring to ``adaverify bench``: values first, then times, beside a baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from adaverify_contracts import _check
from adaverify_contracts.capability import Capability, Requirements
from adaverify_contracts.errors import DescriptorError

BenchmarkCell = str | int | float | None
"""One value of a result's row; None where this device or variant has no such figure."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Repeated measurements of one quantity, in microseconds: the median and the quartiles around it."""

    median: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.median <= self.high:
            raise DescriptorError(
                "Sample holds no median with its quartiles",
                arrived=(self.low, self.median, self.high),
                allowed="0 <= low <= median <= high, microseconds",
                remedy="build it from measured times",
            )


@dataclass(frozen=True, slots=True)
class Times:
    """What one variant costs.

    Attributes:
        host: a call by a monotonic clock, the device idle before it.
        gpu: a call by events with the queue kept full before it; None on a CPU.
        graph_host: a replay of the captured call on the host; None on a CPU or when not captured.
        graph_gpu: a replay of the captured call by events; None likewise.
    """

    host: Sample
    gpu: Sample | None = None
    graph_host: Sample | None = None
    graph_gpu: Sample | None = None


@runtime_checkable
class Timer(Protocol):
    """Takes the times of a benchmark, so that every benchmark is measured in one way."""

    def time(
        self,
        variants: Mapping[str, Callable[[], object]],
        *,
        captured: bool = True,
        before: Mapping[str, Callable[[], object]] | None = None,
    ) -> Mapping[str, Times]:
        """Return the times of each variant; variants take turns in every round, in an order that rotates.

        Args:
            variants: by name; each is called often, warm-up included, and reads static inputs.
            captured: also capture each call in a CUDA graph, where the device has graphs.
            before: by the name of a variant, what is done before each of its calls and not timed.
        """
        ...

    def under_load(self, variants: Mapping[str, Callable[[], object]]) -> Mapping[str, Sample]:
        """Return host times of calls made while the device's queue is full; on a CPU there is no queue."""
        ...

    def captured(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """Return a replay of ``work`` that returns what ``work`` returned; ``work`` itself on a CPU."""
        ...

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        ...


def _silent(done: int, total: int, what: str) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True)
class BenchmarkOptions:
    """What a run of a benchmark is asked for.

    Attributes:
        device: torch device string.
        capability: of that device.
        timer: takes the times.
        repeat: rounds in which the variants take turns, at least 1.
        requests: batch sizes to measure, rising; empty leaves them to the benchmark.
        steps: decode steps or calls that count for one figure; None leaves them to the benchmark.
        model: name of a registered model, for benchmarks that run one; None leaves it to the benchmark.
        dtype: ``float32`` or ``bfloat16`` for such a model; None leaves it to the settings.
        offline: never download anything.
        drafter: name of a registered drafter for that model; None leaves it to the benchmark.
        progress: called as ``progress(done, total, what)`` before each case.
        stages: parts to run, for benchmarks that have several; empty runs all.
        folder: where such a benchmark keeps what it measured; None leaves it to the benchmark.
        again: measure what is kept there once more.
        context: KV length of each request, for benchmarks that have one; None leaves it to the benchmark.
    """

    device: str
    capability: Capability
    timer: Timer
    repeat: int = 5
    requests: tuple[int, ...] = ()
    steps: int | None = None
    model: str | None = None
    dtype: str | None = None
    offline: bool = False
    drafter: str | None = None
    progress: Callable[[int, int, str], None] = field(default=_silent, repr=False)
    stages: tuple[str, ...] = ()
    folder: Path | None = None
    again: bool = False
    context: int | None = None

    def __post_init__(self) -> None:
        _check.strings("BenchmarkOptions", "stages", self.stages)
        _check.instance("BenchmarkOptions", "again", self.again, bool)
        if self.folder is not None:
            _check.instance("BenchmarkOptions", "folder", self.folder, Path)
        if self.context is not None:
            _check.at_least("BenchmarkOptions", "context", self.context, 1)
        _check.instance("BenchmarkOptions", "device", self.device, str)
        _check.instance("BenchmarkOptions", "capability", self.capability, Capability)
        _check.instance("BenchmarkOptions", "timer", self.timer, Timer)
        _check.at_least("BenchmarkOptions", "repeat", self.repeat, 1)
        if self.steps is not None:
            _check.at_least("BenchmarkOptions", "steps", self.steps, 1)
        for size in self.requests:
            _check.at_least("BenchmarkOptions", "requests", size, 1)
        if list(self.requests) != sorted(set(self.requests)):
            raise DescriptorError(
                "BenchmarkOptions.requests does not rise",
                arrived=self.requests,
                allowed="batch sizes, smallest first, each once",
                remedy="sort them",
            )
        _check.callable_field("BenchmarkOptions", "progress", self.progress)


@dataclass(frozen=True, slots=True)
class BenchmarkColumn:
    """A column of a result: its name (the key in JSON), its unit, and whether the table shows it."""

    name: str
    unit: str = ""
    shown: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise DescriptorError(
                "BenchmarkColumn.name is not a key",
                arrived=self.name,
                allowed="an identifier such as host_us",
                remedy="rename it; people read it in JSON",
            )
        _check.instance("BenchmarkColumn", "unit", self.unit, str)


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """What one benchmark found. It cannot be built without saying which values were right first.

    Attributes:
        columns: unique by name.
        rows: one tuple a case and variant, as long as ``columns``.
        checks: what was compared with a reference before any time was taken, one sentence each; at least one.
        data: the distribution of the inputs, in words.
        cache: whether caches were warm or cold, in words.
        notes: what a reader of the figures should know, one sentence each.
        facts: further JSON-ready values that identify the setup, by name.
    """

    columns: tuple[BenchmarkColumn, ...]
    rows: tuple[tuple[BenchmarkCell, ...], ...]
    checks: tuple[str, ...]
    data: str
    cache: str
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names or len(set(names)) != len(names):
            raise DescriptorError(
                "BenchmarkResult.columns are missing or repeat a name",
                arrived=tuple(names),
                allowed="at least one column, names unique",
                remedy="name each column once",
            )
        wrong = [row for row in self.rows if not isinstance(row, tuple) or len(row) != len(names)]
        if wrong or not self.rows:
            raise DescriptorError(
                "BenchmarkResult.rows do not fit its columns",
                arrived=wrong[0] if wrong else "no rows",
                allowed=f"at least one row of {len(names)} values",
                remedy="give each row a value for each column, None where there is none",
            )
        _check.strings("BenchmarkResult", "checks", self.checks)
        _check.strings("BenchmarkResult", "notes", self.notes)
        for name in ("data", "cache"):
            _check.strings("BenchmarkResult", name, (getattr(self, name),))
        if not self.checks:
            raise DescriptorError(
                "BenchmarkResult has times and no checks",
                allowed="at least one sentence: what was compared with which reference",
                remedy="compare values with a reference before taking times",
            )

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary; rows become dictionaries by column name."""
        return {
            "units": {column.name: column.unit for column in self.columns},
            "rows": [
                {column.name: value for column, value in zip(self.columns, row, strict=True)}
                for row in self.rows
            ],
            "checks": list(self.checks),
            "data": self.data,
            "cache": self.cache,
            "notes": list(self.notes),
            "facts": dict(self.facts),
        }


@dataclass(frozen=True, slots=True)
class BenchmarkDescriptor:
    """A benchmark as a plugin registers it.

    Attributes:
        name: unique name users type after ``adaverify bench``.
        description: one sentence: what is measured against which baseline.
        requirements: what the device must offer.
        run: called with the options. It compares values with a reference first and raises ``WrongValueError``
            when one differs; only then it takes times.
        stages: parts that can be run alone. A benchmark that has some takes long and keeps what it measured
            in a folder; ``adaverify bench all`` leaves it out.
    """

    name: str
    description: str
    requirements: Requirements
    run: Callable[[BenchmarkOptions], BenchmarkResult] = field(repr=False)
    stages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check.name("BenchmarkDescriptor", self.name)
        if self.name == "all":
            raise DescriptorError(
                "BenchmarkDescriptor.name is taken",
                arrived=self.name,
                allowed="any other name: `adaverify bench all` runs every benchmark",
                remedy="rename it",
            )
        _check.strings("BenchmarkDescriptor", "description", (self.description,))
        _check.instance("BenchmarkDescriptor", "requirements", self.requirements, Requirements)
        _check.callable_field("BenchmarkDescriptor", "run", self.run)
        _check.strings("BenchmarkDescriptor", "stages", self.stages)
