"""Recorded truth on the host: where requests start, and what a step of theirs must accept."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from adaverify_contracts import AdaverifyError


@dataclass(frozen=True, slots=True)
class Text:
    """Every position of the recorded text, one sequence behind the other.

    A request walks through all of it and starts again at the end: a sequence that ends gives its slot to the
    next one.

    Attributes:
        scores: float32 [P, K], the drafter's scores by position.
        accepted: int64 [P], drafts that the target accepts there.
        source: facts about the records, JSON-ready.
    """

    scores: np.ndarray
    accepted: np.ndarray
    source: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        positions, width = self.scores.shape
        if not len(self.accepted) == positions > width or self.accepted.max(initial=0) > width:
            raise AdaverifyError(
                "the records cannot be replayed",
                arrived={"scores": self.scores.shape, "accepted": self.accepted.shape},
                allowed="a row of scores and a count in 0 .. K for each position, more positions than K",
                remedy="record again with `adaverify record`",
            )

    @property
    def drafts(self) -> int:
        """K."""
        return int(self.scores.shape[1])

    def starts(self, requests: int, block: int, blocks: int | None = None) -> np.ndarray:
        """Return int64 [R], first positions of a round's requests: spread evenly, other ones every block.

        Of a known number of ``blocks`` each begins as far behind the one before: together they pass as much
        of every stretch of text.
        """
        positions = len(self.accepted)
        if blocks is not None:
            return (positions * (block + blocks * np.arange(requests)) // (blocks * requests)) % positions
        # The golden ratio spreads the first few offsets as evenly as any number of them.
        offset = int(positions * (0.6180339887498949 * block % 1.0))
        return (offset + np.arange(requests) * positions // requests) % positions


class Cursors:
    """Where each request of a round stands, as the host alone can follow it.

    Args:
        text: the records.
        starts: int64 [R], first positions.
    """

    def __init__(self, text: Text, starts: np.ndarray) -> None:
        self._text = text
        self.at = starts.copy()

    @property
    def truth(self) -> np.ndarray:
        """int64 [R], drafts that would be accepted now, however many are verified."""
        found: np.ndarray = self._text.accepted[self.at]
        return found

    @property
    def scores(self) -> np.ndarray:
        """float32 [R, K], the drafter's scores now."""
        found: np.ndarray = self._text.scores[self.at]
        return found

    def advance(self, admitted: np.ndarray) -> np.ndarray:
        """Verify int64 [R] ``admitted`` drafts, move on, and return int64 [R], the accepted ones."""
        accepted: np.ndarray = np.minimum(admitted, self.truth)
        self.at = (self.at + accepted + 1) % len(self._text.accepted)
        return accepted
