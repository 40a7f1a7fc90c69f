"""The nearest known name, for messages about misspelt ones."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to ``name``, or None when nothing is close."""
    matches = get_close_matches(name, tuple(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ``, did you mean X?`` for the nearest known name, or an empty string."""
    match = nearest(name, known)
    return f", did you mean {match}?" if match else ""
