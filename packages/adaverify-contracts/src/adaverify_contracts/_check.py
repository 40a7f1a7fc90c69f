"""Checks that descriptors and value types apply to themselves when they are built."""

from __future__ import annotations

import re

from adaverify_contracts.errors import AdaverifyError, DescriptorError

_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")


def name(owner: str, value: object) -> None:
    """Require a lower-case hyphenated name such as ``uniform`` or ``n-gram``."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise DescriptorError(
            f"{owner}.name is not a registrable name",
            arrived=value,
            allowed="lower-case letters and digits in words joined by single hyphens, first a letter",
            remedy="rename it; names are typed by users in settings and on the command line",
        )


def callable_field(owner: str, field: str, value: object) -> None:
    """Require something that can be called."""
    if not callable(value):
        raise DescriptorError(
            f"{owner}.{field} cannot be called",
            arrived=value,
            allowed="a function or class; the hook returns descriptors and does no work itself",
            remedy=f"pass the factory, not its result, as {field}",
        )


def instance(owner: str, field: str, value: object, kind: type) -> None:
    """Require an instance of ``kind``; a bool is not an int here."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise DescriptorError(
            f"{owner}.{field} has the wrong type",
            arrived=value,
            allowed=kind.__name__,
            remedy=f"pass a {kind.__name__}",
        )


def strings(owner: str, field: str, value: object) -> None:
    """Require a tuple of non-empty strings (a bare string is a common slip)."""
    if not isinstance(value, tuple) or not all(isinstance(item, str) and item for item in value):
        raise DescriptorError(
            f"{owner}.{field} is not a tuple of non-empty strings",
            arrived=value,
            allowed="a tuple of non-empty strings, possibly empty",
            remedy="write ('a', 'b'), or ('a',) for one",
        )


def at_least(
    owner: str, field: str, value: object, lowest: int, error: type[AdaverifyError] = DescriptorError
) -> None:
    """Require an int that is not below ``lowest``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
        raise error(
            f"{owner}.{field} is out of range",
            arrived=value,
            allowed=f"an int >= {lowest}",
            remedy=f"choose {field} >= {lowest}",
        )


def one_of(owner: str, field: str, value: object, allowed: tuple[str, ...]) -> None:
    """Require one of a few words."""
    if value not in allowed:
        raise DescriptorError(
            f"{owner}.{field} is not an allowed word",
            arrived=value,
            allowed=", ".join(allowed),
            remedy=f"choose one of the allowed words for {field}",
        )
