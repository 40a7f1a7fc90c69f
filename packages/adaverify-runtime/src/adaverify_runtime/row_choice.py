"""Which ragged strategy builds a step's rows where several fit: by measured times, never by a constant."""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from adaverify_contracts import CostTableError, FingerprintMismatchError
from adaverify_verification.json_file import read_json, write_whole

TIE = "tie"
UNKNOWN = "unknown shape"
_REMEDY = "measure again with the strategy's own benchmark"


@dataclass(frozen=True, slots=True)
class RowCost:
    """What one step cost with one strategy.

    Attributes:
        strategy: name of the decode strategy.
        tokens: query tokens of the step, padding included.
        context: longest KV length of the step.
        seconds: time of the step's rows and attention, median.
        noise_seconds: half the interquartile range; a smaller difference is a tie.
    """

    strategy: str
    tokens: int
    context: int
    seconds: float
    noise_seconds: float = 0.0

    def __post_init__(self) -> None:
        sizes = (self.tokens, self.context)
        times = (self.seconds, self.noise_seconds)
        numbers = all(isinstance(value, int | float) and math.isfinite(value) for value in times)
        whole = all(isinstance(size, int) and size >= 1 for size in sizes)
        named = isinstance(self.strategy, str) and bool(self.strategy)
        if not (named and whole and numbers) or self.seconds <= 0 or self.noise_seconds < 0:
            raise CostTableError(
                "an entry of the row-cost table is no measurement",
                arrived=asdict(self),
                allowed="a strategy, tokens and context >= 1, seconds > 0, noise_seconds >= 0",
                remedy=_REMEDY,
            )


@dataclass(frozen=True, slots=True)
class RowCostTable:
    """Measured costs and the setup they belong to.

    Attributes:
        costs: at most one for each (strategy, tokens, context).
        fingerprint: the setup as plain strings and numbers: device, library version, heads and so on.
    """

    costs: tuple[RowCost, ...]
    fingerprint: Mapping[str, Any]

    def __post_init__(self) -> None:
        counts = Counter((cost.strategy, cost.tokens, cost.context) for cost in self.costs)
        repeated = sorted(key for key, count in counts.items() if count > 1)
        if repeated:
            raise CostTableError(
                "the row-cost table holds an entry twice",
                arrived=repeated,
                allowed="one each",
                remedy=_REMEDY,
            )

    @property
    def strategies(self) -> tuple[str, ...]:
        """Names of the measured strategies, sorted."""
        return tuple(sorted({cost.strategy for cost in self.costs}))

    @classmethod
    def load(cls, path: Path | str, expected: Mapping[str, Any] | None = None) -> RowCostTable:
        """Read a table from what ``save`` or ``adaverify bench NAME --json`` wrote.

        Of a benchmark report the first benchmark counts whose facts hold ``row_costs``; the other facts are
        its fingerprint. Other keys are left alone.

        Args:
            path: the file.
            expected: this setup's values for some or all keys of the fingerprint.

        Raises:
            CostTableError: the file cannot be read, or is not such a table.
            FingerprintMismatchError: it was measured on another setup.
        """
        try:
            document = _table_of(read_json(Path(path)))
            costs = tuple(RowCost(**_entry(cost)) for cost in document["row_costs"])
            fingerprint = dict(document["fingerprint"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CostTableError(
                f"no row-cost table can be read from {path}",
                # Python's words for a wrong file tell its reader nothing; the system's do.
                arrived=f"{type(error).__name__}: {error}" if isinstance(error, OSError) else str(error),
                allowed="JSON with a list 'row_costs' and an object 'fingerprint'",
                remedy=_REMEDY,
            ) from error
        differences = {
            key: (fingerprint.get(key), value)
            for key, value in (expected or {}).items()
            if fingerprint.get(key) != value
        }
        if differences:
            raise FingerprintMismatchError(differences).within(f"row costs {path}")
        return cls(costs, MappingProxyType(fingerprint))

    def save(self, path: Path | str) -> None:
        """Write the table as JSON that ``load`` reads."""
        document = {
            "fingerprint": dict(self.fingerprint),
            "row_costs": [asdict(cost) for cost in self.costs],
        }
        write_whole(Path(path), json.dumps(document, indent=1) + "\n")


def _table_of(document: Any) -> Any:
    """Return what holds ``row_costs`` and ``fingerprint``."""
    if not isinstance(document, dict):
        raise ValueError(f"the file holds {json.dumps(document)[:60]}, and no JSON object")
    for found in document.get("benchmarks", ()):
        facts = dict(found["facts"])
        if "row_costs" in facts:
            document = {"row_costs": facts.pop("row_costs"), "fingerprint": facts}
            break
    for name, kind in (("row_costs", list), ("fingerprint", dict)):
        if not isinstance(document.get(name), kind):
            raise ValueError(f"{name}: {json.dumps(document.get(name))[:60]}")
    return document


def _entry(cost: Any) -> dict[str, Any]:
    """Return the fields of one measurement; a noise may be left out."""
    names = {field.name for field in fields(RowCost)}
    if not isinstance(cost, dict) or not names - {"noise_seconds"} <= cost.keys() <= names:
        raise ValueError(
            f"row_costs: {json.dumps(cost)[:80]}, with other fields than {', '.join(sorted(names))}"
        )
    return cost


@dataclass(frozen=True, slots=True)
class Choice:
    """A strategy for one shape, why, and the word it is counted as."""

    strategy: str
    reason: str
    word: str


# Query tokens below and above a point, then contexts; equal where the point itself was measured.
_Cell = tuple[int, int, int, int]


class _Comparison:
    """One alternative beside the primary strategy, on the grid where both were measured."""

    def __init__(self, table: RowCostTable, primary: str, name: str) -> None:
        self.name = name
        mine, theirs = (
            {(cost.tokens, cost.context): cost for cost in table.costs if cost.strategy == strategy}
            for strategy in (primary, name)
        )
        self._pairs = {key: (mine[key], theirs[key]) for key in mine.keys() & theirs.keys()}
        self._axes = [sorted({key[axis] for key in self._pairs}) for axis in (0, 1)]

    def cell(self, tokens: int, context: int) -> _Cell | None:
        """Return the measured values around a point on both axes, None outside of them."""
        found = []
        for axis, value in zip(self._axes, (tokens, context), strict=True):
            below, above = bisect_right(axis, value) - 1, bisect_left(axis, value)
            if below < 0 or above == len(axis):
                return None
            found += [axis[below], axis[above]]
        return found[0], found[1], found[2], found[3]

    def corners(self, cell: _Cell | None) -> tuple[tuple[RowCost, RowCost], ...]:
        """Return (primary, alternative) at the corners of a cell, () when one was not measured."""
        if cell is None:
            return ()
        keys = {(t, c) for t in cell[:2] for c in cell[2:]}
        return tuple(self._pairs[key] for key in sorted(keys)) if keys <= self._pairs.keys() else ()


class RowChoice:
    """Chooses an alternative only where it was measured to win; it never loses to the primary strategy.

    A shape between measured points takes an alternative when that won at *every* corner around it, by more
    than the noise of both. Of several that did, the one that gains most at its worst corner is taken. Ties
    and shapes outside the table are the primary strategy's. Host only.

    Args:
        table: the measurements.
        primary: the strategy that serves every shape.
        alternatives: other strategies that could serve it, best first.
    """

    def __init__(self, table: RowCostTable, primary: str, alternatives: Sequence[str]) -> None:
        self._primary = primary
        self._comparisons = [_Comparison(table, primary, name) for name in alternatives]
        words = (primary, *alternatives, TIE, UNKNOWN)
        self._counters: Counter[str] = Counter(dict.fromkeys(words, 0))
        # A grid has few cells: after a few steps every answer is a look-up.
        self._known: dict[tuple[_Cell | None, ...], Choice] = {}

    @property
    def counters(self) -> Mapping[str, int]:
        """Return how often each word was counted: a strategy's name, ``tie`` or ``unknown shape``."""
        return MappingProxyType(self._counters)

    def count(self, word: str) -> None:
        """Count the word of a choice that a step was built by."""
        self._counters[word] += 1

    def choose(self, tokens: int, context: int) -> Choice:
        """Choose for ``tokens`` query tokens whose longest KV length is ``context``; counts nothing.

        The word of the choice is ``tie`` where the primary strategy was taken without having won.
        """
        cells = tuple(comparison.cell(tokens, context) for comparison in self._comparisons)
        choice = self._known.get(cells)
        if choice is None:
            choice = self._known[cells] = self._compare(cells)
        return choice

    def _compare(self, cells: tuple[_Cell | None, ...]) -> Choice:
        found = [
            (comparison.name, comparison.corners(cell))
            for comparison, cell in zip(self._comparisons, cells, strict=True)
        ]
        measured = [(name, corners) for name, corners in found if corners]
        if not measured:
            return Choice(self._primary, "rows: no alternative was measured around this shape", UNKNOWN)
        gains = {
            name: min(mine.seconds / theirs.seconds for mine, theirs in corners)
            for name, corners in measured
            if all(_won(theirs, mine) for mine, theirs in corners)
        }
        if gains:
            best = max(gains, key=lambda name: gains[name])
            where = _words(dict(measured)[best])
            reason = f"rows: at least {gains[best]:.2f} times as fast as {self._primary} {where}"
            return Choice(best, reason, best)
        lost = all(any(_won(mine, theirs) for mine, theirs in corners) for _, corners in measured)
        corners = measured[0][1]
        how = "lost to it" if lost else "did not win everywhere"
        reason = f"rows: {', '.join(name for name, _ in measured)} {how} {_words(corners)}"
        return Choice(self._primary, reason, self._primary if lost else TIE)


def _won(one: RowCost, other: RowCost) -> bool:
    return other.seconds - one.seconds > max(one.noise_seconds, other.noise_seconds)


def _words(corners: tuple[tuple[RowCost, RowCost], ...]) -> str:
    tokens, contexts = ({getattr(mine, name) for mine, _ in corners} for name in ("tokens", "context"))
    spans = [f"{min(s)}" if len(s) == 1 else f"{min(s)} to {max(s)}" for s in (tokens, contexts)]
    return f"at {spans[0]} query tokens and context {spans[1]}"
