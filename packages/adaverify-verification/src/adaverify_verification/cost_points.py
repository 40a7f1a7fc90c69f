"""Points of a cost table as they arrive: each is checked, whatever wrote it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from adaverify_contracts import CostTableError
from adaverify_verification.fingerprint import LARGEST, Fingerprint

REMEASURE = "run `adaverify profile` to measure a new table"

Point = tuple[int, int, int, float]


def require_time(name: str, value: object, *, zero: bool = False) -> float:
    """Return a number of seconds as a float; raises ``CostTableError`` where it is no usable time."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _finite(value):
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


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        # An int that no float holds.
        return False


def require_parts(fingerprint: object, **lists: object) -> None:
    """Require a fingerprint and lists; raises ``CostTableError``."""
    if not isinstance(fingerprint, Fingerprint):
        raise CostTableError(
            "a cost table belongs to no setup",
            arrived=fingerprint,
            allowed="a Fingerprint",
            remedy="build it with Fingerprint.of(...), or Fingerprint.from_mapping({...})",
        )
    for name, values in lists.items():
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise CostTableError(
                f"the {name} of a cost table are no points",
                arrived=values,
                allowed="(requests, seconds) pairs"
                if name == "draft"
                else "(tokens, requests, context, seconds) points",
                remedy=f"pass {name} as a list of tuples",
            )


def draft_price(raw: Sequence[float]) -> tuple[int, float]:
    """Return (requests, seconds) of drafting; raises ``CostTableError``."""
    pair = _listed(raw, 2, "a draft price does not have two numbers", "(requests, seconds)")
    count = pair[0]
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or not 1 <= count <= LARGEST:
        raise CostTableError(
            "a draft price has requests off its axis",
            arrived=tuple(pair),
            allowed=f"an int in 1 .. {LARGEST}",
            remedy=REMEASURE,
        )
    seconds = pair[1].item() if isinstance(pair[1], np.generic) else pair[1]
    return int(count), require_time(f"draft seconds at {count} requests", seconds, zero=True)


def _listed(raw: object, length: int, problem: str, allowed: str) -> list[Any]:
    listed = list(raw) if isinstance(raw, Iterable) and not isinstance(raw, str | bytes) else None
    if listed is None or len(listed) != length:
        raise CostTableError(
            problem, arrived=raw if listed is None else tuple(listed), allowed=allowed, remedy=REMEASURE
        )
    return listed


def point(raw: Sequence[float]) -> Point:
    """Return a (tokens, requests, context, seconds) point; raises ``CostTableError``."""
    raw = _listed(raw, 4, "a cost point does not have four numbers", "(tokens, requests, context, seconds)")
    for name, value, lowest in zip(("tokens", "requests", "context"), raw, (1, 1, 0), strict=False):
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not whole or not lowest <= value <= LARGEST:
            raise CostTableError(
                f"a cost point has {name} off its axis",
                arrived=tuple(raw),
                allowed=f"an int in {lowest} .. {LARGEST}",
                remedy=REMEASURE,
            )
    tokens, requests, context = (int(value) for value in raw[:3])
    seconds = raw[3].item() if isinstance(raw[3], np.generic) else raw[3]
    named = f"the step time at {tokens} tokens, {requests} requests, context {context}"
    return tokens, requests, context, require_time(named, seconds)


def bare_point(raw: Sequence[float]) -> Point:
    """Return a point of a step that drafts nothing, its requests as 0; raises ``CostTableError``."""
    tokens, requests, context, seconds = point(raw)
    if tokens != requests:
        raise CostTableError(
            "a step that drafts nothing has other than one token a request",
            arrived=(tokens, requests, context, seconds),
            allowed="as many requests as tokens",
            remedy=REMEASURE,
        )
    # One curve a context: requests are no axis of their own.
    return tokens, 0, context, seconds
