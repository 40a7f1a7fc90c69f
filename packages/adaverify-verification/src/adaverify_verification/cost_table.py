"""Measured step times over (tokens, requests, context), made monotone, saved with their fingerprint."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from adaverify_contracts import CostTableError, FingerprintMismatchError
from adaverify_verification.cost_points import (
    REMEASURE,
    Point,
    bare_point,
    draft_price,
    point,
    require_parts,
    require_time,
)
from adaverify_verification.fingerprint import Fingerprint
from adaverify_verification.json_file import read_json, write_whole
from adaverify_verification.monotone import isotonic
from adaverify_verification.table_truth import (
    require_facts,
    require_lists,
    require_setup,
    require_single,
    require_steps,
)

FORMAT = "adaverify-cost-table"
VERSION = 1
# ``bare`` is there only where there are such prices: a file without it means what it always meant, and a
# reader that does not know it refuses it by name.
KEYS = frozenset(
    (
        "format",
        "version",
        "fingerprint",
        "points",
        "draft",
        "bare",
        "rejected_seconds",
        "outliers",
        "disturbed",
    )
)
# A point that the monotone fit moves by more than this is named: medians of repeated runs agree to about 1 %.
OUTLIER_SHARE = 0.02

Samples = dict[tuple[int, int], dict[int, list[float]]]

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
        bare_curves: whole steps that draft nothing, where steps are captured and their curves include the
            drafting; one a context, over tokens, each of them a request's only one.
    """

    fingerprint: Fingerprint
    curves: tuple[CostCurve, ...]
    outliers: tuple[str, ...] = ()
    draft: tuple[tuple[int, float], ...] = ()
    rejected_seconds: float = 0.0
    disturbed: tuple[str, ...] = ()
    bare_curves: tuple[CostCurve, ...] = ()

    @classmethod
    def from_points(
        cls,
        fingerprint: Fingerprint,
        points: Iterable[Sequence[float]],
        *,
        draft: Iterable[Sequence[float]] = (),
        bare: Iterable[Sequence[float]] = (),
        rejected_seconds: float = 0.0,
        noted: Iterable[str] = (),
        disturbed: Iterable[str] = (),
    ) -> CostTable:
        """Return a table of (tokens, requests, context, seconds) points, and (requests, seconds) of drafting.

        Several times for one point count by their median, since sizes that are padded alike are measured as
        one; where they differ by more than 2 % of it, the table's ``outliers`` say so. So do several times
        of drafting for one number of requests.
        ``bare`` are points of steps that draft nothing: as many requests as tokens.
        ``noted`` are sentences about single slow rounds, kept among the outliers; ``disturbed`` are those
        about points whose rounds never agreed.

        Raises:
            CostTableError: no points, or one that is not finite, not positive or off the axes; or what is no
                fingerprint.
        """
        require_parts(fingerprint, points=points, draft=draft, bare=bare)
        samples = _samples(point(raw) for raw in points)
        if not samples:
            raise CostTableError(
                "a cost table holds no measurement", allowed="at least one point", remedy=REMEASURE
            )
        free = _samples(bare_point(raw) for raw in bare)
        curves, bare_curves = _curves(samples), _curves(free)
        outliers = [*_odd(samples, curves), *_odd(free, bare_curves)]
        require_time("rejected_seconds", rejected_seconds, zero=True)
        prices: dict[int, list[float]] = defaultdict(list)
        for count, seconds in (draft_price(price) for price in draft):
            prices[count].append(seconds)
        for count, times in sorted(prices.items()):
            outliers.extend(_contradictory(f"drafting for {count} requests", times))
        drafting = tuple(sorted((count, median(times)) for count, times in prices.items()))
        named = tuple(dict.fromkeys((*outliers, *(str(note) for note in noted))))
        unquiet = tuple(str(note) for note in disturbed)
        return cls(fingerprint, curves, named, drafting, float(rejected_seconds), unquiet, bare_curves)

    @property
    def points(self) -> tuple[Point, ...]:
        """Measured (tokens, requests, context, seconds) points, as measured."""
        return tuple(
            (tokens, curve.requests, curve.context, seconds)
            for curve in self.curves
            for tokens, seconds in zip(curve.tokens, curve.measured, strict=True)
        )

    @property
    def bare(self) -> tuple[Point, ...]:
        """Measured points of steps that draft nothing, as measured; none where they have no price."""
        return tuple(
            (tokens, tokens, curve.context, seconds)
            for curve in self.bare_curves
            for tokens, seconds in zip(curve.tokens, curve.measured, strict=True)
        )

    def scaled(self, factor: float) -> CostTable:
        """Return the table with every time multiplied by ``factor``, as another clock would have measured it.

        Plans do not change: they compare ratios of these times.

        Raises:
            CostTableError: the factor is no finite number > 0.
        """
        require_time("the factor of a cost table", factor)
        curves, bare = (
            tuple(
                replace(
                    curve,
                    measured=tuple(factor * seconds for seconds in curve.measured),
                    seconds=tuple(factor * seconds for seconds in curve.seconds),
                )
                for curve in family
            )
            for family in (self.curves, self.bare_curves)
        )
        draft = tuple((count, factor * seconds) for count, seconds in self.draft)
        return replace(
            self,
            curves=curves,
            draft=draft,
            rejected_seconds=factor * self.rejected_seconds,
            bare_curves=bare,
        )

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
            **({"bare": self.bare} if self.bare_curves else {}),
            "rejected_seconds": self.rejected_seconds,
            "outliers": self.outliers,
            "disturbed": self.disturbed,
        }
        write_whole(target, json.dumps(document, indent=1, allow_nan=False) + "\n")

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
        require_lists(document)
        fingerprint = Fingerprint.from_mapping(require_facts(document))
        require_setup(fingerprint)
        table = cls.from_points(
            fingerprint,
            document["points"],
            draft=document.get("draft", ()),
            bare=document.get("bare", ()),
            rejected_seconds=document.get("rejected_seconds", 0.0),
            noted=document.get("outliers", ()),
            disturbed=document.get("disturbed", ()),
        )
        require_single(document)
        require_steps((*table.points, *table.bare), table.draft)
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
    if not isinstance(document, dict):
        raise CostTableError(
            "the file is not a cost table",
            arrived=json.dumps(document)[:60],
            allowed=f"a JSON object of format {FORMAT}, version {VERSION}",
            remedy=REMEASURE,
        )
    kind = (document.get("format"), document.get("version"))
    # True equals 1, and is no version.
    if kind != (FORMAT, VERSION) or isinstance(kind[1], bool):
        raise CostTableError(
            "the file is not a cost table of this version",
            arrived=kind,
            allowed=f"{FORMAT} {VERSION}",
            remedy=REMEASURE,
        )
    return document


def _samples(points: Iterable[Point]) -> Samples:
    samples: Samples = defaultdict(lambda: defaultdict(list))
    for tokens, requests, context, seconds in points:
        samples[requests, context][tokens].append(seconds)
    return samples


def _curves(samples: Samples) -> tuple[CostCurve, ...]:
    return tuple(
        _curve(requests, context, {count: median(values) for count, values in by_tokens.items()})
        for (requests, context), by_tokens in sorted(samples.items())
    )


def _curve(requests: int, context: int, by_tokens: dict[int, float]) -> CostCurve:
    tokens = tuple(sorted(by_tokens))
    measured = tuple(by_tokens[count] for count in tokens)
    return CostCurve(requests, context, tokens, measured, tuple(isotonic(np.array(measured)).tolist()))


def _odd(samples: Samples, curves: tuple[CostCurve, ...]) -> list[str]:
    """Return a sentence about each point whose times contradict each other, or the never-falling curve."""
    found = []
    for curve in curves:
        for tokens, times in sorted(samples[curve.requests, curve.context].items()):
            found.extend(_contradictory(_where(curve, tokens), times))
        found.extend(_outliers(curve))
    return found


def _where(curve: CostCurve, tokens: int) -> str:
    return f"{tokens} tokens, {curve.requests or tokens} requests, context {curve.context}"


def _contradictory(where: str, times: list[float]) -> list[str]:
    used = median(times)
    if max(times) - min(times) <= OUTLIER_SHARE * used:
        return []
    return [f"{where}: {len(times)} times from {min(times):.6g} to {max(times):.6g} s, used {used:.6g} s"]


def _outliers(curve: CostCurve) -> list[str]:
    return [
        f"{_where(curve, tokens)}: measured {measured:.6g} s, used {used:.6g} s"
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
