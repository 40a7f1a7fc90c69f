"""What a round of captures did, size by size."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from adaverify_contracts import GraphKey


@dataclass(frozen=True, slots=True)
class CaptureFailure:
    """One size that has no graph.

    Attributes:
        key: the size.
        stage: ``prepare``, ``estimate``, ``limit`` or ``capture``.
        cause: error type and text, or the numbers of the limit. Text only: a kept traceback would keep the
            failed size's memory alive.
    """

    key: GraphKey
    stage: str
    cause: str


@dataclass(frozen=True, slots=True)
class CaptureReport:
    """The outcome of ``capture_all`` or ``recapture``.

    Attributes:
        captured: sizes that are usable now, in the order of capture (largest first).
        failed: sizes that are not, each with its cause.
        estimated_bytes: (size, bytes) as estimated before each capture.
        pool_bytes: bytes held by all captures afterwards.
        bytes_limit: the limit in force, None for none.
        seconds: wall time of the round.
    """

    captured: tuple[GraphKey, ...]
    failed: tuple[CaptureFailure, ...]
    estimated_bytes: tuple[tuple[GraphKey, int], ...]
    pool_bytes: int
    bytes_limit: int | None
    seconds: float

    @property
    def complete(self) -> bool:
        """Whether every requested size has a graph."""
        return not self.failed

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return asdict(self)

    def lines(self) -> tuple[str, ...]:
        """Return the report in words: one line in all, and one for each size that failed."""
        limit = "no limit" if self.bytes_limit is None else f"limit {self.bytes_limit}"
        head = (
            f"captured {len(self.captured)} of {len(self.captured) + len(self.failed)} sizes "
            f"in {self.seconds:.1f} s, {self.pool_bytes} bytes ({limit})"
        )
        return (
            head,
            *(f"{item.key.tokens} tokens has no graph ({item.stage}): {item.cause}" for item in self.failed),
        )
