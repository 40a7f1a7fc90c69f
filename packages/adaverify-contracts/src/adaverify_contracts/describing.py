"""Putting what a stranger's code raised or returned into words, whatever its own text does."""

from __future__ import annotations

import traceback
from collections.abc import Callable


def describe(error: BaseException) -> str:
    """Return type and text of an exception; one whose own text raises is described without it."""
    return f"{kind_of(error)}: {text_of(error)}"


def text_of(value: object) -> str:
    """Return ``str(value)``, or why there is none: words about a failure must not be another failure."""
    return _safely(str, value, "__str__")


def shown(value: object) -> str:
    """Return ``repr(value)``, or why there is none."""
    return _safely(repr, value, "__repr__")


def kind_of(value: object) -> str:
    """Return the name of a value's type."""
    # A metaclass may answer ``__name__`` itself.
    return str(type.__dict__["__name__"].__get__(type(value)))


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception, or its description where it cannot be printed."""
    try:
        return "".join(traceback.format_exception(error))
    except KeyboardInterrupt:
        raise
    except BaseException as other:  # noqa: BLE001 - printing runs the exception's own code
        return f"{describe(error)} (its traceback cannot be printed: {kind_of(other)})"


def _safely(read: Callable[[object], str], value: object, method: str) -> str:
    try:
        # The method may return a subclass of str, with methods of its own.
        return str.__str__(read(value))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the text is the stranger's code
        return f"<{kind_of(value)}, whose {method} raised {kind_of(error)}>"
