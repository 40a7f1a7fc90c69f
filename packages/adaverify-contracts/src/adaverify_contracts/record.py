"""What a finished step leaves behind: plain values, one line of the trace."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class RequestRows:
    """What a step did to each decode request, in batch order; one entry a request in every field.

    Attributes:
        keys: what tells requests apart; equal for equal prompts where the engine says so.
        drafted, admitted, accepted: draft tokens scheduled, verified and accepted.
        judged: leading drafts whose fate counts: those behind an accepted end token do not.
        learn: False keeps a request out of calibration.
        sampled: its regime.
        scores: the drafter's K raw scores, rounded to 1e-4; None where one is no finite number.
    """

    keys: tuple[int, ...]
    drafted: tuple[int, ...]
    admitted: tuple[int, ...]
    accepted: tuple[int, ...]
    judged: tuple[int, ...]
    learn: tuple[bool, ...]
    sampled: tuple[bool, ...]
    scores: tuple[tuple[float | None, ...], ...]

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One line of the trace: plan, reason, predicted and realised. Plain values only.

    ``planned`` and ``verified`` are both kept: a difference is an error that ``fallbacks`` names. ``rows`` is
    None where nobody listens, and in records of a version that had none.
    """

    step: int
    state: str
    reason: str
    requests: int
    certain_tokens: int
    scheduled: int
    planned: int
    verified: int
    accepted: int
    emitted: int
    tokens: int
    tier: int
    strategy: str
    predicted_seconds: float | None
    realised_seconds: float | None
    predicted_tokens: float
    realised_tokens: int
    lag: int | None
    digest: str
    fallbacks: tuple[str, ...] = field(default=())
    rows: RequestRows | None = field(default=None)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        # Not asdict, which would visit every score of every request.
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        return plain | {"rows": None if self.rows is None else self.rows.as_dict()}
