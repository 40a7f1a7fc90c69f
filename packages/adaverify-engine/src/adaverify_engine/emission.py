"""Handing decided tokens to requests: stop conditions, text, gaps and log-probabilities.

All rows of a step are handled at once; those that a stop condition may end, and those whose text is due, are
looked at one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from adaverify_contracts import EngineError
from adaverify_contracts.describing import describe
from adaverify_engine.events import Events
from adaverify_engine.request import FinishReason, Request
from adaverify_engine.running import Running

_OWN_END = (FinishReason.STOP_TOKEN, FinishReason.STOP_TEXT)


@dataclass(frozen=True, slots=True)
class Decided:
    """A verdict on the host, by row.

    Attributes:
        accepted: int64 [S], accepted drafts.
        tokens: [S, K + 1], the first accepted + 1 of each row count; gaps: float32 [S, K + 1].
        rows: [S, K + 1], the logits row of each token; None where there are no logits.
    """

    accepted: np.ndarray
    tokens: np.ndarray
    gaps: np.ndarray
    rows: np.ndarray | None = None

    def of_rows(self, rows: np.ndarray) -> Decided:
        """Return the verdict on some rows, int64 [N]."""
        logits = None if self.rows is None else self.rows[rows]
        return Decided(self.accepted[rows], self.tokens[rows], self.gaps[rows], logits)


@dataclass(frozen=True, slots=True)
class Emission:
    """What a step handed out.

    Attributes:
        kept: int64 [S], tokens of each row; cut: tokens decided and not handed out.
        events: one a row.
    """

    kept: np.ndarray
    cut: int
    events: Events

    @property
    def tokens(self) -> int:
        """Tokens handed out."""
        return int(self.kept.sum())

    @property
    def ended(self) -> list[int]:
        """Rows whose request ended, rising."""
        return list(self.events.reasons)

    def judged(self, drafted: np.ndarray, accepted: np.ndarray) -> np.ndarray:
        """Return int64 [R], how many leading drafts count for calibration: all, or up to an accepted end.

        Whether the target would go on with the drafts behind its own end is a question of no text.

        Args:
            drafted: int64 [R], drafts scheduled in the first R rows; accepted: int64 [R].
        """
        judged, rows = drafted.astype(np.int64), len(drafted)
        for row, reason in self.events.reasons.items():
            if row < rows and reason in _OWN_END and self.kept[row] <= accepted[row]:
                judged[row] = self.kept[row]
        return judged


def emit(
    running: Running,
    requests: Sequence[Request],
    slots: np.ndarray,
    decided: Decided,
    logits: torch.Tensor | None,
) -> Emission:
    """Append each row's tokens to its request until one ends it.

    Only tokens that the target decided arrive here. A draft that was refused or not admitted is in none of
    the request's tokens, text, stop detection, gaps or log-probabilities. Without logits there are no
    log-probabilities.

    Args:
        running: the requests' state by slot.
        requests: S requests that run; slots: int64 [S], theirs.
        decided: a row each.
        logits: float32 [N, V], or None.
    """
    counts = decided.accepted + 1
    kept, ended = _kept(running, requests, slots, decided.tokens, counts)
    running.append(slots, kept, decided.tokens, decided.gaps)
    if logits is not None and running.logging:
        for row in np.flatnonzero(running.logprobs[slots]).tolist():
            _log_probabilities(requests[row], decided, row, int(kept[row]), logits)
    due = ended
    if running.streaming:
        due = sorted({*ended, *np.flatnonzero(running.streams[slots]).tolist()})
    pieces = {row: _text(requests[row], decided.tokens[row, : kept[row]]) for row in due}
    reasons = {row: reason for row in due if (reason := requests[row].finished) is not None}
    events = Events(running.ids[slots], decided.tokens, kept, pieces, reasons)
    return Emission(kept, 0 if kept is counts else int(counts.sum() - kept.sum()), events)


def _kept(
    running: Running,
    requests: Sequence[Request],
    slots: np.ndarray,
    tokens: np.ndarray,
    counts: np.ndarray,
) -> tuple[np.ndarray, list[int]]:
    """Return int64 [S], how many tokens of each row are handed out, and the rows that end."""
    ended: list[int] = []
    room = running.room(slots)
    full = counts >= room
    careful = running.careful(slots, tokens, counts)
    careful = full if careful is None else full | careful
    if not np.count_nonzero(careful):
        return counts, ended
    kept = np.minimum(counts, room)
    for row in np.flatnonzero(careful).tolist():
        request = requests[row]
        if full[row]:
            request.finished = FinishReason.LENGTH
        kept[row] = _looked_at(request, tokens[row, : kept[row]].tolist())
        if request.finished is not None:
            ended.append(row)
    return kept, ended


def _looked_at(request: Request, tokens: list[int]) -> int:
    """Return how many of ``tokens`` are handed out, up to the one that ends the request."""
    if not request.stop_tokens.isdisjoint(tokens):
        end = next(place for place, token in enumerate(tokens) if token in request.stop_tokens)
        tokens, request.finished = tokens[: end + 1], FinishReason.STOP_TOKEN
    return _watched(request, tokens) if request.text.watches else len(tokens)


def _watched(request: Request, tokens: list[int]) -> int:
    """Return how many tokens there are up to the one that completes a stop text."""
    # A stop token has no text.
    texts = len(tokens) - (request.finished is FinishReason.STOP_TOKEN)
    for place, token in enumerate(tokens[:texts]):
        try:
            stopped = request.text.push(token)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - this request ends here, its batch mates go on
            _fail(request, error)
            return place + 1
        if stopped:
            request.finished = FinishReason.STOP_TEXT
            return place + 1
    return len(tokens)


def _text(request: Request, tokens: np.ndarray) -> str:
    """Return the text that is due: that of this step, or all of it at the end where none was before."""
    if not request.text.watches:
        new = tokens.tolist() if request.sampling.stream else request.output
        request.text.extend(new[:-1] if request.finished is FinishReason.STOP_TOKEN else new)
    try:
        return request.text.take(final=request.finished is not None)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - as in _watched
        _fail(request, error)
        return ""


def _log_probabilities(request: Request, decided: Decided, row: int, kept: int, logits: torch.Tensor) -> None:
    assert decided.rows is not None  # noqa: S101 - there are logits
    for at, token in zip(decided.rows[row, :kept].tolist(), decided.tokens[row].tolist(), strict=False):
        request.logprobs.append(float(logits[at][token] - logits[at].logsumexp(0)))


def _fail(request: Request, error: BaseException) -> None:
    request.error = str(error) if isinstance(error, EngineError) else describe(error)
    request.finished = FinishReason.FAILED
