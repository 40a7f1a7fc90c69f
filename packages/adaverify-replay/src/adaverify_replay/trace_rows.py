"""The rows of a trace's record: from JSON to ``RequestRows``, or the reason why not."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from adaverify_contracts import RequestRows

_COUNTS = ("drafted", "admitted", "accepted", "judged")
_FLAGS = ("learn", "sampled")
# Comparisons with these refuse NaN, infinities and integers that no array holds.
_LARGEST_COUNT = 2**63
_LARGEST_SCORE = 1e300
_NAMES = tuple(item.name for item in fields(RequestRows))


def read_rows(value: object) -> RequestRows | str:
    """Return the rows that a JSON value holds, or in words what is wrong with it."""
    if not isinstance(value, dict) or set(value) != set(_NAMES):
        return f"not an object with {', '.join(_NAMES)}"
    for name, column in value.items():
        if not isinstance(column, list) or len(column) != len(value["keys"]):
            return f"{name} is no list with one entry a request"
    for name in ("keys", *_COUNTS):
        if not all(type(item) is int and abs(item) < _LARGEST_COUNT for item in value[name]):
            return f"{name} holds something else than integers of 64 bits"
    for name in _FLAGS:
        if not all(isinstance(item, bool) for item in value[name]):
            return f"{name} holds something else than true and false"
    return _counts(value) or _scores(value["scores"]) or _rows(value)


def _counts(value: dict[str, Any]) -> str:
    for low, high in (("accepted", "admitted"), ("admitted", "drafted"), ("judged", "drafted")):
        if any(not 0 <= one <= other for one, other in zip(value[low], value[high], strict=True)):
            return f"{low} is not within 0 .. {high}"
    return ""


def _scores(rows: list[Any]) -> str:
    for row in rows:
        if not isinstance(row, list) or len(row) != len(rows[0]):
            return "scores are not K a request"
        if not all(item is None or _is_score(item) for item in row):
            return "scores holds something else than finite numbers and null"
    return ""


def _is_score(item: object) -> bool:
    return isinstance(item, int | float) and not isinstance(item, bool) and abs(item) < _LARGEST_SCORE


def _rows(value: dict[str, Any]) -> RequestRows | str:
    if any(count > len(row) for count, row in zip(value["drafted"], value["scores"], strict=True)):
        return "drafted is more than there are scores"
    columns = {name: tuple(column) for name, column in value.items()}
    columns["scores"] = tuple(
        tuple(None if item is None else float(item) for item in row) for row in value["scores"]
    )
    return RequestRows(**columns)
