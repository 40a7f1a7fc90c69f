"""Text of a growing list of tokens, with stop texts that may span tokens."""

from __future__ import annotations

from collections.abc import Sequence

from adaverify_contracts import Tokenizer

_INCOMPLETE = "\ufffd"
_HELD_TOKENS = 16
"""After this many tokens without a complete character, the text is taken as it is (a character is 4
bytes)."""


class Detokenizer:
    """Incremental decoding: ``push`` tokens, ``take`` text that is final.

    Only the tokens since the last complete character are decoded again, with the ones before them as context
    (a tokeniser may join or strip spaces). Text that might be the beginning of a stop text is held back.

    Args:
        tokenizer: turns ids into text.
        stop_texts: texts that end the request.
    """

    def __init__(self, tokenizer: Tokenizer, stop_texts: Sequence[str] = ()) -> None:
        self._decode = tokenizer.decode
        self._stops = tuple(stop_texts)
        self._longest = max((len(stop) for stop in self._stops), default=0)
        self._context: list[int] = []
        self._pending: list[int] = []
        self._taken = 0
        self._text = ""
        self._tail = ""
        self.stopped = False

    @property
    def text(self) -> str:
        """All text so far, cut before a stop text once one was met."""
        return self._text if self.stopped else self._text + self._tail

    def push(self, token: int) -> bool:
        """Add one token; return whether a stop text is now complete."""
        self._pending.append(token)
        before = self._decode(self._context)
        after = self._decode(self._context + self._pending)
        new = after[len(before) :]
        incomplete = new.endswith(_INCOMPLETE) and len(self._pending) < _HELD_TOKENS
        self._tail = new if incomplete else ""
        if incomplete or (not new and len(self._pending) < _HELD_TOKENS):
            return False
        self._context, self._pending = self._pending, []
        searched = max(0, len(self._text) - self._longest + 1)
        self._text += new
        hits = [at for stop in self._stops if (at := self._text.find(stop, searched)) >= 0]
        if hits:
            self._text = self._text[: min(hits)]
            self.stopped = True
        return self.stopped

    def take(self, final: bool) -> str:
        """Return text not taken yet that no later token can change; everything left when ``final``."""
        text = self.text
        end = len(text) if final or self.stopped else len(self._text) - self._held()
        piece = text[self._taken : end]
        self._taken = max(self._taken, end)
        return piece

    def _held(self) -> int:
        """Length of the longest suffix that could still become a stop text."""
        for size in range(min(self._longest - 1, len(self._text)), 0, -1):
            if any(stop.startswith(self._text[-size:]) for stop in self._stops if len(stop) > size):
                return size
        return 0
