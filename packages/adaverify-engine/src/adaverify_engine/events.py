"""The events of a step, made when somebody looks at them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import overload

import numpy as np

from adaverify_engine.request import Event, FinishReason


class Events(Sequence[Event]):
    """The events of a step in row order.

    Whoever only runs the engine to its end looks at none, and 512 of them take longer to make than the whole
    rest of handing out.

    Args:
        ids: int64 [S], request ids.
        tokens: [S, K + 1]; kept: int64 [S], how many of each row. Neither is written to any more.
        pieces: text by row, where there is any.
        reasons: why a request ended, by row.
    """

    def __init__(
        self,
        ids: np.ndarray,
        tokens: np.ndarray,
        kept: np.ndarray,
        pieces: Mapping[int, str],
        reasons: Mapping[int, FinishReason],
    ) -> None:
        self._ids, self._tokens, self._kept = ids, tokens, kept
        self._pieces, self._reasons = pieces, reasons
        self._made: list[Event] | None = None

    def __len__(self) -> int:
        """Return how many events there are."""
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> Event: ...

    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...

    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        """Return an event, or some of them."""
        return self._events()[index]

    def __eq__(self, other: object) -> bool:
        """Compare with the events of any sequence."""
        return isinstance(other, Sequence) and self._events() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Return the events as a list shows them."""
        return repr(self._events())

    @property
    def reasons(self) -> Mapping[int, FinishReason]:
        """Why requests ended, by row; those that go on are not in it."""
        return self._reasons

    def _events(self) -> list[Event]:
        if self._made is None:
            rows = zip(self._ids.tolist(), self._tokens.tolist(), self._kept.tolist(), strict=True)
            self._made = [
                Event(number, tuple(tokens[:kept]), self._pieces.get(row, ""), self._reasons.get(row))
                for row, (number, tokens, kept) in enumerate(rows)
            ]
        return self._made


def joined(steps: Iterable[Sequence[Event]]) -> Sequence[Event]:
    """Return the events of some steps, one after the other; those of one step as they are."""
    some = [step for step in steps if len(step)]
    if len(some) == 1:
        return some[0]
    return [event for step in some for event in step]
