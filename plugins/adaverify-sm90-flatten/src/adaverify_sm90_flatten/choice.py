"""Rows of one token or of two: chosen by measured times, never by a constant."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from adaverify_contracts import CostTableError, FingerprintMismatchError

FLATTEN = "flatten"
PAIRED = "paired"
_REMEDY = "measure again with `adaverify bench logits --requests 1 --requests 16 --requests 64 --json FILE`"
_BENCHMARK = "logits"


@dataclass(frozen=True, slots=True)
class RowCost:
    """What one step cost both ways.

    Attributes:
        tokens: query tokens of the step, padding included.
        context: longest KV length of the step.
        flatten_us: time with one token a row, median, microseconds.
        paired_us: time with two tokens a row, likewise.
        noise_us: half the larger interquartile range of the two; a smaller difference is a tie.
    """

    tokens: int
    context: int
    flatten_us: float
    paired_us: float
    noise_us: float = 0.0

    def __post_init__(self) -> None:
        times = (self.flatten_us, self.paired_us)
        positive = all(value > 0 for value in times) and self.noise_us >= 0
        if self.tokens < 1 or self.context < 1 or not positive:
            raise CostTableError(
                "a cell of the row-cost table is no measurement",
                arrived=asdict(self),
                allowed="tokens and context >= 1, times > 0, noise_us >= 0",
                remedy=_REMEDY,
            )

    @property
    def paired_wins(self) -> bool:
        """Whether two tokens a row were faster by more than the noise."""
        return self.flatten_us - self.paired_us > self.noise_us


@dataclass(frozen=True, slots=True)
class RowCostTable:
    """Measured cells and the setup they belong to.

    Attributes:
        cells: at most one for each (tokens, context).
        fingerprint: the setup as plain strings and numbers: device, library version, heads and so on.
    """

    cells: tuple[RowCost, ...]
    fingerprint: Mapping[str, Any]

    def __post_init__(self) -> None:
        keys = [(cell.tokens, cell.context) for cell in self.cells]
        repeated = sorted({key for key in keys if keys.count(key) > 1})
        if repeated:
            raise CostTableError(
                "the row-cost table holds a cell twice", arrived=repeated, allowed="one each", remedy=_REMEDY
            )

    @classmethod
    def load(cls, path: Path, expected: Mapping[str, Any] | None = None) -> RowCostTable:
        """Read a table from the JSON that ``adaverify bench logits`` writes.

        Args:
            path: the file; the rows and facts of ``logits`` are read, or ``cells`` and ``fingerprint`` of a
                file that holds a table alone. Other keys are left alone.
            expected: this setup's values for some or all keys of the fingerprint.

        Raises:
            CostTableError: the file cannot be read, or is not such a table.
            FingerprintMismatchError: it was measured on another setup.
        """
        try:
            document = _table_of(json.loads(Path(path).read_text(encoding="utf-8")))
            names = RowCost.__dataclass_fields__
            cells = tuple(
                RowCost(**{key: value for key, value in cell.items() if key in names})
                for cell in document["cells"]
            )
            fingerprint = dict(document["fingerprint"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CostTableError(
                f"no row-cost table can be read from {path}",
                arrived=f"{type(error).__name__}: {error}",
                allowed="JSON of the benchmark logits, or with 'cells' and 'fingerprint'",
                remedy=_REMEDY,
            ) from error
        differences = {
            key: (fingerprint.get(key), value)
            for key, value in (expected or {}).items()
            if fingerprint.get(key) != value
        }
        if differences:
            raise FingerprintMismatchError(differences)
        return cls(cells, MappingProxyType(fingerprint))

    def around(self, tokens: int, context: int) -> tuple[RowCost, ...]:
        """Return the measured corners of the grid cell that holds a point, () when one is missing."""
        found = {(cell.tokens, cell.context): cell for cell in self.cells}
        sides = [_bracket({key[axis] for key in found}, value) for axis, value in ((0, tokens), (1, context))]
        corners = {(t, c) for t in sides[0] for c in sides[1]}
        if not corners or not corners <= found.keys():
            return ()
        return tuple(found[corner] for corner in sorted(corners))


def _table_of(document: Any) -> Any:
    """Return what holds ``cells`` and ``fingerprint``."""
    if "benchmarks" not in document:
        return document
    for found in document["benchmarks"]:
        if found["name"] == _BENCHMARK:
            return {"cells": found["rows"], "fingerprint": found["facts"]}
    raise KeyError(_BENCHMARK)


def _bracket(measured: set[int], value: int) -> set[int]:
    """Return the nearest measured values on both sides, none when the value lies outside them."""
    below = [point for point in measured if point <= value]
    above = [point for point in measured if point >= value]
    return {max(below), min(above)} if below and above else set()


@dataclass(frozen=True, slots=True)
class Choice:
    """A strategy for one shape, and why."""

    strategy: str
    reason: str


class RowChoice:
    """Chooses ``paired`` only where it was measured to win; it never loses to ``flatten``.

    A shape between measured points is ``paired`` when that won at *every* corner around it. Ties and shapes
    outside the table are ``flatten``, counted in ``counters``. Host only: ask once for each captured shape.

    Args:
        table: the measurements; None knows nothing.
    """

    def __init__(self, table: RowCostTable | None = None) -> None:
        self._table = table
        self._counters: Counter[str] = Counter(paired=0, flatten=0, tie=0, unknown=0)

    @property
    def counters(self) -> Mapping[str, int]:
        """Return how often each outcome came up: ``paired``, ``flatten`` (lost), ``tie``, ``unknown``."""
        return MappingProxyType(self._counters)

    def choose(self, tokens: int, context: int) -> Choice:
        """Choose for a step of ``tokens`` query tokens whose longest KV length is ``context``."""
        corners = self._table.around(tokens, context) if self._table is not None else ()
        shape = f"{tokens} query tokens at context {context}"
        if not corners:
            self._counters["unknown"] += 1
            return Choice(FLATTEN, f"{shape} was not measured")
        if all(cell.paired_wins for cell in corners):
            self._counters["paired"] += 1
            least = min(cell.flatten_us / cell.paired_us for cell in corners)
            return Choice(PAIRED, f"{shape}: at least {least:.2f} times as fast at all measured corners")
        worst = min(corners, key=lambda cell: cell.flatten_us / cell.paired_us)
        lost = worst.paired_us - worst.flatten_us > worst.noise_us
        self._counters["flatten" if lost else "tie"] += 1
        times = f"{worst.flatten_us:g} us flattened, {worst.paired_us:g} us paired"
        where = f"{worst.tokens} tokens at context {worst.context}"
        return Choice(FLATTEN, f"{shape}: {'paired lost' if lost else 'a tie'} at {where} ({times})")
