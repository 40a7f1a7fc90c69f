"""What every stage stands on: device, records, the model body, settings."""

from __future__ import annotations

import gc
import json
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from adaverify.bench.endtoend import sources
from adaverify.bench.endtoend.text import Text
from adaverify.bench.whole import RerunBackend
from adaverify.session import discover
from adaverify_contracts import BenchmarkOptions, CapabilityError, Limits, LimitsError
from adaverify_runtime import (
    PluginManager,
    RowCostTable,
    Settings,
    check_calibration,
    doctor,
    read_calibration,
)
from adaverify_verification import Fingerprint

if TYPE_CHECKING:
    from adaverify_engine.sparse_moe import SparseMoeSizes

# Ladders weigh every pair of token counts, in a table that grows with their square.
MOST_REQUESTS = 1024
REQUESTS = {"cuda": (1, 4, 16, 64, 128, 256), "cpu": (1, 4)}
CONTEXT = {"cuda": 2048, "cpu": 48}
# Room behind the context: a round's requests go back to it when they have used it up. With it a cache of one
# entry for 4 tokens has a multiple of 256 entries, which is how wide the kernel library makes rows of scores.
SPAN = {"cuda": 1016, "cpu": 64}


@dataclass(slots=True)
class Ground:
    """Parts that are made once and shared by all decks of a run.

    Attributes:
        options: of the benchmark.
        settings, plugins: of this process.
        text: recorded truth on the host.
        requests: concurrencies, rising.
        context: KV length that requests start with.
        model: sizes of the model.
    """

    options: BenchmarkOptions
    settings: Settings
    plugins: PluginManager
    text: Text
    requests: tuple[int, ...]
    context: int
    model: SparseMoeSizes
    _body: sources.MadeBody | None = field(default=None, repr=False)
    _asked: tuple[int, int] = (0, 0)

    @property
    def device(self) -> torch.device:
        """The run device."""
        return torch.device(self.options.device)

    @property
    def kind(self) -> str:
        """``cpu`` or ``cuda``."""
        return "cpu" if self.device.type == "cpu" else "cuda"

    def limits(self, requests: int, context: int) -> Limits:
        """Return the sizes of a deck."""
        length, page = context + SPAN[self.kind], sources.PAGE_SIZE[self.kind]
        ratio = self.model.compress_ratio
        return Limits(requests, self.text.drafts, length, page, compress_ratio=ratio)

    def settings_for(self, limits: Limits, wanted: tuple[int, ...], level: str | None) -> Settings:
        """Return settings that capture ``wanted``.

        The ladder always holds the multiples of K + 1 as far as the number of graphs allows, so a short
        ladder gets room for both.
        """
        multiples = set(range(limits.max_query_len, limits.max_tokens + 1, limits.max_query_len))
        both = multiples | set(wanted)
        most = len(both) if len(both) <= len(wanted) + limits.max_query_len else len(wanted)
        graphs = self.settings.graphs.model_copy(update={"max_graphs": most, "mode": level})
        return replace(self.settings, graphs=graphs)

    def body(self, requests: int | None = None, context: int | None = None) -> sources.MadeBody:
        """Return the model with caches for ``requests`` of ``context``; made once for each such size.

        Another size takes the place of the one before: there is memory for one.
        """
        asked = (
            max(self.requests) if requests is None else requests,
            self.context if context is None else context,
        )
        if self._body is None or self._asked != asked:
            self._body = None
            self.release()
            limits, capability = self.limits(*asked), self.options.capability
            self._body = sources.make_body(self.model, limits, self.device, self.plugins, capability)
            self._asked = asked
        return self._body

    def release(self) -> None:
        """Give memory that nobody holds back to the device."""
        gc.collect()
        if self.kind == "cuda":
            torch.cuda.empty_cache()

    @property
    def identity(self) -> dict[str, Any]:
        """What results belong to, JSON-ready."""
        return {
            "device": self.options.capability.device_name,
            "torch": str(torch.__version__),
            "model": self.model.as_dict(),
            "records": dict(self.text.source),
            "context": self.context,
            "planner": self.settings.planner.model_dump(mode="json"),
            "row costs": _digest(self.settings.paths.row_costs),
            "calibration": _calibration_digest(self.settings.paths.calibration),
            "strategy": self.settings.device.strategy,
            "graph backend": self.settings.graphs.backend,
            "threads": torch.get_num_threads(),
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the settings does not count here, in words."""
        if self.kind == "cpu" and self.settings.sparse_moe.chosen():
            return ("the model has small sizes of its own on a CPU; ADAVERIFY_SPARSE_MOE_* count on a card",)
        return ()

    def fingerprint(self, ladder: tuple[int, ...]) -> Fingerprint:
        """Return the setup that measured step times belong to."""
        capability = self.options.capability
        return Fingerprint.of(
            device=capability.device_name,
            torch=str(torch.__version__),
            kernels=[f"{report.name} {report.version}" for report in capability.kernels],
            model=f"recorded steps, {self.model.as_dict()}",
            ladder=ladder,
            draft_tokens=self.text.drafts,
            dtype="bfloat16",
        )


def _digest(path: Path | None) -> str | None:
    """Return a name of the row costs in a file, None where no file is named.

    Raises:
        CostTableError: the file holds none.
    """
    if path is None:
        return None
    return sha256(repr(RowCostTable.load(path).costs).encode()).hexdigest()[:16]


def _calibration_digest(path: Path | None) -> str | None:
    """Return a name of what a calibration file holds, None where no file is named.

    Raises:
        CalibrationError: the file cannot be read or holds none.
    """
    if path is None:
        return None
    found = read_calibration(path)
    return sha256(json.dumps([found.signal, found.state], sort_keys=True).encode()).hexdigest()[:16]


def require_settings(ground: Ground) -> None:
    """Refuse settings with which no case can be measured, before the first one.

    Raises:
        CalibrationError: the calibration file does not fit the records' K or a signal.
        CapabilityError: no verifier can be assembled; has every reason.
    """
    limits = ground.limits(ground.requests[0], ground.context)
    # As a deck assembles: it is adaptive, and chooses the level of its graphs by itself.
    planner = ground.settings.planner.model_copy(update={"mode": "adaptive"})
    graphs = ground.settings.graphs.model_copy(update={"mode": None})
    settings = replace(ground.settings, planner=planner, graphs=graphs)
    settings = check_calibration(settings, ground.plugins, limits)
    capability, device = ground.options.capability, ground.options.device
    report = doctor(settings, device, plugins=ground.plugins, limits=limits, capability=capability)
    if report.problems:
        raise CapabilityError(
            "no verifier can be assembled here, so nothing can be measured",
            arrived=" | ".join(report.problems),
            allowed="settings and plugins that fit this device",
            remedy="cure each of them; `adaverify doctor` lists what there is",
        )


def open_ground(options: BenchmarkOptions) -> Ground:
    """Load records and settings; the model is made when the first deck needs it.

    Raises:
        LimitsError: more requests than ``MOST_REQUESTS``.
    """
    largest = max(options.requests or (1,))
    if largest > MOST_REQUESTS:
        raise LimitsError(
            "too many requests for this benchmark",
            arrived=largest,
            allowed=f"1 .. {MOST_REQUESTS}",
            remedy="name fewer with --requests",
        )
    settings, plugins = discover()
    plugins.check_requirements(options.capability)
    kind = "cpu" if options.device.startswith("cpu") else "cuda"
    if kind == "cpu":
        plugins.register(RerunBackend(), "bench-rerun")
    return Ground(
        options=options,
        settings=settings,
        plugins=plugins,
        text=sources.load_text(),
        model=sources.model_sizes(options, settings),
        requests=options.requests or REQUESTS[kind],
        context=options.context or CONTEXT[kind],
    )
