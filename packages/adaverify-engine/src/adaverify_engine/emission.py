"""Handing decided tokens to a request: stop conditions, text, gaps and log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from adaverify_contracts import EngineError
from adaverify_contracts.describing import describe
from adaverify_engine.acceptance import Verdict
from adaverify_engine.request import Event, FinishReason, Request


@dataclass(frozen=True, slots=True)
class Decided:
    """A verdict on the host. Lists by sequence: accepted drafts, tokens, their logits rows and gaps."""

    accepted: list[int]
    tokens: list[list[int]]
    rows: list[list[int]]
    gaps: list[list[float]]

    @classmethod
    def of(cls, verdict: Verdict) -> Decided:
        """Copy ``verdict`` to the host: the one wait of a step."""
        return cls(
            verdict.accepted.tolist(), verdict.tokens.tolist(), verdict.rows.tolist(), verdict.gaps.tolist()
        )


def emit(request: Request, decided: Decided, index: int, logits: torch.Tensor | None) -> tuple[Event, int]:
    """Append the tokens of sequence ``index`` until one ends the request; return the event and the cut.

    Only tokens that the target decided arrive here. A draft that was refused or not admitted is in none of
    the request's tokens, text, stop detection, gaps or log-probabilities. Without logits there are no
    log-probabilities.
    """
    count = decided.accepted[index] + 1
    emitted = _kept(request, decided.tokens[index][:count])
    kept = len(emitted)
    request.tokens += emitted
    request.gaps += decided.gaps[index][:kept] if request.sampling.greedy else [float("nan")] * kept
    if logits is not None and request.sampling.logprobs:
        for row, token in zip(decided.rows[index], emitted, strict=False):
            request.logprobs.append(float(logits[row][token] - logits[row].logsumexp(0)))
    piece = ""
    try:
        piece = request.text.take(final=request.finished is not None)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - as in _watched
        _fail(request, error)
    return Event(request.id, tuple(emitted), piece, request.finished), count - kept


def _kept(request: Request, tokens: list[int]) -> list[int]:
    """Return ``tokens`` up to the one that ends the request, and set its finish reason there."""
    room = request.max_output - request.output_len
    if len(tokens) >= room:
        tokens, request.finished = tokens[:room], FinishReason.LENGTH
    if not request.stop_tokens.isdisjoint(tokens):
        end = next(place for place, token in enumerate(tokens) if token in request.stop_tokens)
        tokens, request.finished = tokens[: end + 1], FinishReason.STOP_TOKEN
    if request.text.watches:
        return _watched(request, tokens)
    # A stop token has no text; a request without stop texts is decoded when its text is taken.
    request.text.extend(tokens[:-1] if request.finished is FinishReason.STOP_TOKEN else tokens)
    return tokens


def _watched(request: Request, tokens: list[int]) -> list[int]:
    """Return ``tokens`` up to the one that completes a stop text."""
    texts = len(tokens) - (request.finished is FinishReason.STOP_TOKEN)
    for place, token in enumerate(tokens[:texts]):
        try:
            stopped = request.text.push(token)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - this request ends here, its batch mates go on
            _fail(request, error)
            return tokens[: place + 1]
        if stopped:
            request.finished = FinishReason.STOP_TEXT
            return tokens[: place + 1]
    return tokens


def _fail(request: Request, error: BaseException) -> None:
    request.error = str(error) if isinstance(error, EngineError) else describe(error)
    request.finished = FinishReason.FAILED
