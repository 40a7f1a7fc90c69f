"""Text from outside, made safe to show: what would steer a terminal is shown as an escape."""

from __future__ import annotations

import re

# Control characters (ESC begins the sequences that move a cursor or retitle a window), marks that reverse
# the order of what follows, and halves of surrogate pairs, which undecodable file names hold and no encoding
# takes. The line end and the tab are layout.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# The same but for what JSON escapes by itself.
_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str, *, one_line: bool = False) -> str:
    """Return ``text`` with every unsafe character as the escape that Python writes; others are untouched.

    Args:
        text: any text, of a file, a variable or a model.
        one_line: escape line ends too, for a value inside a sentence.
    """
    shown = _UNSAFE.sub(lambda match: _escape(match[0]), text)
    return shown.replace("\n", "\\n") if one_line else shown


def visible_json(text: str) -> str:
    """Return JSON text with unsafe characters as JSON escapes: the value is the same."""
    return _UNSAFE_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
