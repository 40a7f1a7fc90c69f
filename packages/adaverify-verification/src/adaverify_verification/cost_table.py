"""Measured step times over (tokens, requests, context), made monotone, saved with their fingerprint."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from adaverify_contracts import CostTableError, FingerprintMismatchError
from adaverify_verification.fingerprint import Fingerprint
from adaverify_verification.json_file import read_json
from adaverify_verification.monotone import isotonic

FORMAT = "adaverify-cost-table"
VERSION = 1
KEYS = frozenset(
    ("format", "version", "fingerprint", "points", "draft", "rejected_seconds", "outliers", "disturbed")
)
# A point that the monotone fit moves by more than this is named: medians of repeated runs agree to about 1 %.
OUTLIER_SHARE = 0.02
REMEASURE = "run `adaverify profile` to measure a new table"

Point = tuple[int, int, int, float]

# Below this spread between the cheapest and the dearest point no budget can gain 1 %, and the measurement's
# own noise is about as large: the table carries no information.
FLAT_SPREAD = 0.01


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Step time over executed tokens for one number of requests and one context.

    Attributes:
        requests: decode requests in the step.
        context: KV length of each request, tokens.
        tokens: executed query tokens, strictly rising.
        measured: seconds as measured, one a token count.
        seconds: the never-falling curve that is used.
    """

    requests: int
    context: int
    tokens: tuple[int, ...]
    measured: tuple[float, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CostTable:
    """Whole-step times: verification, sampling, host work and fixed terms included.

    Attributes:
        fingerprint: the setup it was measured on.
        curves: one a (requests, context), sorted.
        outliers: points that broke monotonicity and points with single slow rounds, in words.
        disturbed: points whose rounds never agreed, in words. A table with any is good for the run that
            measured it and for nothing else: measure it again on a quiet machine.
        draft: (requests, seconds) of drafting alone where the engine can skip it and the curves exclude it.
        rejected_seconds: seconds that undoing one rejected draft token costs, 0 where it costs nothing.
    """

    fingerprint: Fingerprint
    curves: tuple[CostCurve, ...]
    outliers: tuple[str, ...] = ()
    draft: tuple[tuple[int, float], ...] = ()
    rejected_seconds: float = 0.0
    disturbed: tuple[str, ...] = ()

    @classmethod
    def from_points(
        cls,
        fingerprint: Fingerprint,
        points: Iterable[Sequence[float]],
        *,
        draft: Iterable[Sequence[float]] = (),
        rejected_seconds: float = 0.0,
        noted: Iterable[str] = (),
        disturbed: Iterable[str] = (),
    ) -> CostTable:
        """Return a table of (tokens, requests, context, seconds) points, and (requests, seconds) of drafting.

        Several times for one point count by their median, since sizes that are padded alike are measured as
        one; where they differ by more than 2 % of it, the table's ``outliers`` say so. So do several times
        of drafting for one number of requests.
        ``noted`` are sentences about single slow rounds, kept among the outliers; ``disturbed`` are those
        about points whose rounds never agreed.

        Raises:
            CostTableError: no points, or one that is not finite, not positive or off the axes; or what is no
                fingerprint.
        """
        _require_parts(fingerprint, points, draft)
        samples: dict[tuple[int, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for raw in points:
            tokens, requests, context, seconds = _point(raw)
            samples[requests, context][tokens].append(seconds)
        if not samples:
            raise CostTableError(
                "a cost table holds no measurement", allowed="at least one point", remedy=REMEASURE
            )
        curves: list[CostCurve] = []
        outliers: list[str] = []
        for (requests, context), by_tokens in sorted(samples.items()):
            for tokens, times in sorted(by_tokens.items()):
                outliers.extend(
                    _contradictory(f"{tokens} tokens, {requests} requests, context {context}", times)
                )
            curve = _curve(requests, context, {count: median(times) for count, times in by_tokens.items()})
            curves.append(curve)
            outliers.extend(_outliers(curve))
        _positive("rejected_seconds", rejected_seconds, zero=True)
        prices: dict[int, list[float]] = defaultdict(list)
        for count, seconds in (_draft_price(price) for price in draft):
            prices[count].append(seconds)
        for count, times in sorted(prices.items()):
            outliers.extend(_contradictory(f"drafting for {count} requests", times))
        drafting = tuple(sorted((count, median(times)) for count, times in prices.items()))
        named = tuple(dict.fromkeys((*outliers, *(str(note) for note in noted))))
        unquiet = tuple(str(note) for note in disturbed)
        return cls(fingerprint, tuple(curves), named, drafting, float(rejected_seconds), unquiet)

    @property
    def points(self) -> tuple[Point, ...]:
        """Measured (tokens, requests, context, seconds) points, as measured."""
        return tuple(
            (tokens, curve.requests, curve.context, seconds)
            for curve in self.curves
            for tokens, seconds in zip(curve.tokens, curve.measured, strict=True)
        )

    def scaled(self, factor: float) -> CostTable:
        """Return the table with every time multiplied by ``factor``, as another clock would have measured it.

        Plans do not change: they compare ratios of these times.

        Raises:
            CostTableError: the factor is no finite number > 0.
        """
        _positive("the factor of a cost table", factor)
        curves = tuple(
            replace(
                curve,
                measured=tuple(factor * seconds for seconds in curve.measured),
                seconds=tuple(factor * seconds for seconds in curve.seconds),
            )
            for curve in self.curves
        )
        draft = tuple((count, factor * seconds) for count, seconds in self.draft)
        return replace(self, curves=curves, draft=draft, rejected_seconds=factor * self.rejected_seconds)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table as JSON; readers see the old file or the new one, never half of it."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": dict(self.fingerprint.pairs),
            "points": self.points,
            "draft": self.draft,
            "rejected_seconds": self.rejected_seconds,
            "outliers": self.outliers,
            "disturbed": self.disturbed,
        }
        # Not mkstemp: its mode 600 would hide the table from whoever else shares the cache.
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        try:
            with part.open("x", encoding="utf-8") as stream:
                json.dump(document, stream, indent=1, allow_nan=False)
                stream.write("\n")
                stream.flush()
                os.fsync(stream.fileno())
            part.replace(target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: str | os.PathLike[str], expected: Fingerprint | None) -> CostTable:
        """Return the table at ``path`` if it was measured on the ``expected`` setup (None: on any).

        Raises:
            CostTableError: missing, unreadable, malformed or without a usable measurement.
            FingerprintMismatchError: measured on another setup; names each field that differs. Both name the
                file.
        """
        try:
            return cls._parsed(_read(Path(path)), expected)
        except CostTableError as error:
            raise error.within(f"cost table {path}") from error

    @classmethod
    def _parsed(cls, document: dict[str, Any], expected: Fingerprint | None) -> CostTable:
        # A misspelt key would be a price of nothing.
        if unknown := sorted(document.keys() - KEYS):
            raise CostTableError(
                "the cost table holds keys that are none",
                arrived=unknown,
                allowed=", ".join(sorted(KEYS)),
                remedy=REMEASURE,
            )
        try:
            fingerprint = Fingerprint.from_mapping(document["fingerprint"])
            table = cls.from_points(
                fingerprint,
                document["points"],
                draft=document.get("draft", ()),
                rejected_seconds=document.get("rejected_seconds", 0.0),
                noted=document.get("outliers", ()),
                disturbed=document.get("disturbed", ()),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CostTableError(
                "the cost table is malformed",
                arrived=f"{type(error).__name__}: {error}",
                allowed=f"a file written by CostTable.save, version {VERSION}",
                remedy=REMEASURE,
            ) from error
        differences = {} if expected is None else fingerprint.differences(expected)
        if differences:
            raise FingerprintMismatchError(differences)
        return table


def _read(path: Path) -> dict[str, Any]:
    try:
        document = read_json(path)
    except (OSError, ValueError) as error:
        raise CostTableError(
            "the cost table cannot be read",
            arrived=f"{type(error).__name__}: {error}",
            allowed="a JSON file written by CostTable.save",
            remedy=REMEASURE,
        ) from error
    kind = (document.get("format"), document.get("version")) if isinstance(document, dict) else None
    if not isinstance(document, dict) or kind != (FORMAT, VERSION):
        raise CostTableError(
            "the file is not a cost table of this version",
            arrived=kind,
            allowed=f"{FORMAT} {VERSION}",
            remedy=REMEASURE,
        )
    return document


def _positive(name: str, value: object, *, zero: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        fits = False
    else:
        fits = value >= 0 if zero else value > 0
    if not fits:
        raise CostTableError(
            f"{name} is not a usable time",
            arrived=value,
            allowed="a finite number of seconds, " + (">= 0" if zero else "> 0"),
            remedy=REMEASURE,
        )
    return float(value)  # type: ignore[arg-type]


def _require_parts(fingerprint: object, points: object, draft: object) -> None:
    if not isinstance(fingerprint, Fingerprint):
        raise CostTableError(
            "a cost table belongs to no setup",
            arrived=fingerprint,
            allowed="a Fingerprint",
            remedy="build it with Fingerprint.of(...), or Fingerprint.from_mapping({...})",
        )
    for name, values in (("points", points), ("draft", draft)):
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise CostTableError(
                f"the {name} of a cost table are no points",
                arrived=values,
                allowed="(tokens, requests, context, seconds) points"
                if name == "points"
                else "(requests, seconds) pairs",
                remedy=f"pass {name} as a list of tuples",
            )


def _draft_price(raw: Sequence[float]) -> tuple[int, float]:
    pair = _listed(raw, 2, "a draft price does not have two numbers", "(requests, seconds)")
    count = pair[0]
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise CostTableError(
            "a draft price has requests off its axis",
            arrived=tuple(pair),
            allowed="an int >= 1",
            remedy=REMEASURE,
        )
    seconds = pair[1].item() if isinstance(pair[1], np.generic) else pair[1]
    return int(count), _positive(f"draft seconds at {count} requests", seconds, zero=True)


def _listed(raw: object, length: int, problem: str, allowed: str) -> list[Any]:
    listed = list(raw) if isinstance(raw, Iterable) and not isinstance(raw, str | bytes) else None
    if listed is None or len(listed) != length:
        raise CostTableError(
            problem, arrived=raw if listed is None else tuple(listed), allowed=allowed, remedy=REMEASURE
        )
    return listed


def _point(raw: Sequence[float]) -> Point:
    raw = _listed(raw, 4, "a cost point does not have four numbers", "(tokens, requests, context, seconds)")
    for name, value, lowest in zip(("tokens", "requests", "context"), raw, (1, 1, 0), strict=False):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < lowest:
            raise CostTableError(
                f"a cost point has {name} off its axis",
                arrived=tuple(raw),
                allowed=f"an int >= {lowest}",
                remedy=REMEASURE,
            )
    tokens, requests, context = (int(value) for value in raw[:3])
    seconds = raw[3].item() if isinstance(raw[3], np.generic) else raw[3]
    named = f"the step time at {tokens} tokens, {requests} requests, context {context}"
    return tokens, requests, context, _positive(named, seconds)


def _curve(requests: int, context: int, by_tokens: dict[int, float]) -> CostCurve:
    tokens = tuple(sorted(by_tokens))
    measured = tuple(by_tokens[count] for count in tokens)
    return CostCurve(requests, context, tokens, measured, tuple(isotonic(np.array(measured)).tolist()))


def _contradictory(where: str, times: list[float]) -> list[str]:
    used = median(times)
    if max(times) - min(times) <= OUTLIER_SHARE * used:
        return []
    return [f"{where}: {len(times)} times from {min(times):.6g} to {max(times):.6g} s, used {used:.6g} s"]


def _outliers(curve: CostCurve) -> list[str]:
    return [
        f"{tokens} tokens, {curve.requests} requests, context {curve.context}: "
        f"measured {measured:.6g} s, used {used:.6g} s"
        for tokens, measured, used in zip(curve.tokens, curve.measured, curve.seconds, strict=True)
        if abs(used - measured) > OUTLIER_SHARE * measured
    ]


def priced_state(table: CostTable | None) -> tuple[bool, str]:
    """Return whether a table can tell budgets apart, and why in words."""
    if table is None:
        return False, "no cost table: run `adaverify profile`"
    if table.rejected_seconds > 0:
        return True, f"{len(table.points)} measured points, rejected drafts cost time of their own"
    spreads = [curve.seconds[-1] / curve.seconds[0] - 1.0 for curve in table.curves]
    if max(spreads) < FLAT_SPREAD:
        return False, (
            f"the cost table is flat: {max(spreads):.2%} between its cheapest and dearest size, "
            f"less than {FLAT_SPREAD:.0%}"
        )
    return True, f"{len(table.points)} measured points"
