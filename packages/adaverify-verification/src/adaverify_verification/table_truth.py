"""What cannot be true of a stored cost table, whoever wrote the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adaverify_contracts import CostTableError
from adaverify_verification.cost_points import REMEASURE
from adaverify_verification.fingerprint import LARGEST, MOST_DRAFTS, Fingerprint

# No clock that times a step tells a nanosecond from nothing, and nobody waits a day for one.
SHORTEST, LONGEST = 1e-9, 86_400.0
_LISTS = ("points", "draft", "bare", "outliers", "disturbed")
_LADDERS = ("ladder", "bare")


def require_lists(document: Mapping[str, Any]) -> None:
    """Require lists where a table has lists, and sentences in those that hold some.

    Raises:
        CostTableError: names the key.
    """
    for name in _LISTS:
        value = document.get(name, [])
        sentences = name in ("outliers", "disturbed")
        if isinstance(value, list) and not (sentences and any(not isinstance(item, str) for item in value)):
            continue
        raise CostTableError(
            f"what the cost table holds as {name} is no such list",
            arrived=value,
            allowed="a list of sentences" if sentences else "a list of lists of numbers",
            remedy=REMEASURE,
        )


def require_facts(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the named facts of a table's fingerprint, points being there too.

    Raises:
        CostTableError: a key is missing, or the fingerprint holds something else than facts.
    """
    if missing := [name for name in ("fingerprint", "points") if name not in document]:
        raise CostTableError(
            f"the cost table has no {' and no '.join(missing)}",
            arrived=sorted(document),
            allowed="a file written by CostTable.save",
            remedy=REMEASURE,
        )
    facts = document["fingerprint"]
    if not isinstance(facts, dict) or not all(_is_fact(value) for value in facts.values()):
        raise CostTableError(
            "the fingerprint of the cost table names no setup",
            arrived=facts,
            allowed="an object of texts and numbers",
            remedy=REMEASURE,
        )
    for name in _LADDERS:
        # A bare number would be read as a ladder of one size.
        if not isinstance(facts.get(name, ""), str | list):
            raise CostTableError(
                f"the {name} of the cost table's fingerprint is no ladder",
                arrived=facts[name],
                allowed="token counts in a text with commas, or in a list",
                remedy=REMEASURE,
            )
    return facts


def _is_fact(value: object) -> bool:
    parts = value if isinstance(value, list) else [value]
    return all(part is None or isinstance(part, str | int | float) for part in parts)


def require_single(document: Mapping[str, Any]) -> None:
    """Require one time for each point; ``CostTable.save`` writes no second one.

    Raises:
        CostTableError: names the point and its times.
    """
    for name, axes in (("points", 3), ("bare", 3), ("draft", 1)):
        times: dict[tuple[Any, ...], float] = {}
        for *where, seconds in document.get(name, ()):
            at = tuple(where[:axes])
            if times.setdefault(at, seconds) != seconds:
                raise CostTableError(
                    f"the cost table's {name} have two times for one size",
                    arrived=(*at, times[at], seconds),
                    allowed="one time each",
                    remedy=REMEASURE,
                )


def require_setup(fingerprint: Fingerprint) -> None:
    """Require that the ladders and K which a fingerprint names can be such.

    Raises:
        CostTableError: names the field.
    """
    facts = dict(fingerprint.pairs)
    for name in _LADDERS:
        if ladder_of(facts.get(name, "")) is None:
            raise CostTableError(
                f"the {name} of the cost table's fingerprint is no ladder",
                arrived=facts[name],
                allowed=f"rising token counts in 1 .. {LARGEST} with commas, or nothing",
                remedy=REMEASURE,
            )
    drafts = facts.get("draft_tokens", "0")
    if _counted(drafts) is None or int(drafts) > MOST_DRAFTS:
        raise CostTableError(
            "the draft_tokens of the cost table's fingerprint are no number of drafts",
            arrived=drafts,
            allowed=f"an int in 0 .. {MOST_DRAFTS}",
            remedy=REMEASURE,
        )


def ladder_of(text: str) -> tuple[int, ...] | None:
    """Return the token counts that a fingerprint names, none in eager mode; None where it is no ladder."""
    counts = [_counted(part) for part in text.split(",")] if text else []
    if any(count is None or not 1 <= count <= LARGEST for count in counts):
        return None
    found = tuple(count for count in counts if count is not None)
    return found if list(found) == sorted(set(found)) else None


def require_steps(
    points: tuple[tuple[int, int, int, float], ...], draft: tuple[tuple[int, float], ...]
) -> None:
    """Require times that a clock can have measured, and a token of each request in every step.

    Raises:
        CostTableError: names the point.
    """
    for tokens, requests, context, seconds in points:
        if tokens < requests:
            raise CostTableError(
                "a cost point has fewer tokens than requests",
                arrived=(tokens, requests, context, seconds),
                allowed="one token of each request at least",
                remedy=REMEASURE,
            )
        _require_clock(f"{tokens} tokens, {requests} requests, context {context}", seconds, SHORTEST)
    for requests, seconds in draft:
        _require_clock(f"drafting for {requests} requests", seconds, 0.0)


def _require_clock(where: str, seconds: float, shortest: float) -> None:
    if not shortest <= seconds <= LONGEST:
        raise CostTableError(
            f"{where}: no step takes that time",
            arrived=seconds,
            allowed=f"{shortest:g} .. {LONGEST:g} seconds",
            remedy=REMEASURE,
        )


def _counted(text: str) -> int | None:
    # At most ten digits: longer ones are no counts, and Python refuses to read very long ones.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None
