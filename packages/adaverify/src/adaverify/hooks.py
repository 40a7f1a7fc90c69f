"""The benchmarks that come with the command line, registered as a stranger's would be."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from adaverify_contracts import (
    BenchmarkDescriptor,
    BenchmarkOptions,
    BenchmarkResult,
    Requirements,
    hookimpl,
)

_DESCRIPTIONS = {
    "metadata": "decode rows in one launch, against a chain of torch calls",
    "plan": "one plan on the host, against a plain search over all budgets",
    "assign": "spending the budget on the device, against topk and cumsum",
    "relay": "confidences to the host behind a full queue, against a blocking event",
    "capture": "capturing the ladder for ragged batches, against full batches only",
    "step": "a decode step, adaptive against fixed, on the same rows",
}
ENDTOEND = "every policy and the published arrangement over recorded truth, in a large model's step"
STAGES = ("curve", "arms", "shares", "paired", "capture", "plot")


class _Run:
    """Runs ``adaverify.bench.<module>``; it is imported when it is run, since it brings torch."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __call__(self, options: BenchmarkOptions) -> BenchmarkResult:
        """Run the benchmark."""
        found: BenchmarkResult = import_module(f"adaverify.bench.{self._module}").run(options)
        return found


@hookimpl
def adaverify_register_benchmarks() -> Sequence[BenchmarkDescriptor]:
    """Return the benchmarks of the components and of the whole; each runs on a CPU and on CUDA."""
    devices = Requirements(device_types=("cpu", "cuda"))
    components = tuple(
        BenchmarkDescriptor(name, description, devices, _Run(name))
        for name, description in _DESCRIPTIONS.items()
    )
    return (*components, BenchmarkDescriptor("endtoend", ENDTOEND, devices, _Run("endtoend.run"), STAGES))
